"""A repeated write with the same `Idempotency-Key` gets the first one's outcome, also while that one still runs.

Knows: keys, digests of bodies, outcomes. Refuses to know: facts' texts: what is kept are ids, so that a deleted fact is
not recallable from here. In memory only: this is for tries that cross each other; the fact store itself knows the keys
of the last day, over restarts too, and which of them a wipe has emptied.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

from inferscale_server.errors import Conflict, InvalidRequest
from inferscale_server.limits import MAX_IDEMPOTENCY_KEY_CHARS
from inferscale_server.types import IdempotencyKey, Owner

Outcome = TypeVar("Outcome")

KEYS_PER_OWNER = 16
OWNERS = 1_024

_KEY = re.compile(rf"[\x21-\x7e]{{1,{MAX_IDEMPOTENCY_KEY_CHARS}}}")


def parse_key(header: str | None, body: bytes) -> IdempotencyKey | None:
    """The name of one write, None when it has none. Raises InvalidRequest for a malformed header."""
    if header is None:
        return None
    if not _KEY.fullmatch(header):
        message = f"the header must be 1 to {MAX_IDEMPOTENCY_KEY_CHARS} printable ASCII characters"
        raise InvalidRequest(message, param="Idempotency-Key")
    return IdempotencyKey(header, hashlib.sha256(body).hexdigest())


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[Outcome]):
    """`wipes`: how often the owner's facts had been deleted at once when it began."""

    body_digest: str
    wipes: int
    task: asyncio.Task[Outcome]


class OncePerKey(Generic[Outcome]):
    """The outcomes of the last KEYS_PER_OWNER keys of each of the last OWNERS owners. For one event loop."""

    def __init__(self, keys_per_owner: int = KEYS_PER_OWNER, owners: int = OWNERS) -> None:
        self._keys_per_owner = keys_per_owner
        self._owners = owners
        self._attempts: OrderedDict[Owner, OrderedDict[str, _Attempt[Outcome]]] = OrderedDict()

    async def run(
        self,
        owner: Owner,
        name: IdempotencyKey | None,
        write: Callable[[], Coroutine[object, object, Outcome]],
        wipes: int = 0,
    ) -> Outcome:
        """The outcome of `write()`, or of the earlier write of this name; without a name always a new one.

        `wipes` is how often the owner's facts have been deleted at once (MemoryService.wipes): an earlier write counts
        only while that stays, because what it stored may be gone, which the fact store knows. A write that raises is
        forgotten: whoever waited for it gets its error, the next try runs again. Raises Conflict for a key that came
        with another body.
        """
        if name is None:
            return await write()
        return await _wait(self._attempt(owner, name, write, wipes).task)

    def _attempt(
        self, owner: Owner, name: IdempotencyKey, write: Callable[[], Coroutine[object, object, Outcome]], wipes: int
    ) -> _Attempt[Outcome]:
        of_owner = self._attempts.setdefault(owner, OrderedDict())
        self._attempts.move_to_end(owner)
        known = of_owner.get(name.key)
        if known is None or known.wipes != wipes or _failed(known.task):
            known = of_owner[name.key] = _Attempt(name.body_digest, wipes, asyncio.create_task(write()))
        elif known.body_digest != name.body_digest:
            raise Conflict("this key was used with another body", code="idempotency_mismatch", param="Idempotency-Key")
        of_owner.move_to_end(name.key)
        self._evict(of_owner)
        return known

    def _evict(self, of_owner: OrderedDict[str, _Attempt[Outcome]]) -> None:
        while len(of_owner) > self._keys_per_owner:
            of_owner.popitem(last=False)
        while len(self._attempts) > self._owners:
            self._attempts.popitem(last=False)


async def _wait(task: asyncio.Task[Outcome]) -> Outcome:
    """A waiter that is cancelled must not cancel the write that others wait for, hence the shield."""
    waiting: Awaitable[Outcome] = asyncio.shield(task)
    return await waiting


def _failed(task: asyncio.Task[Outcome]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
