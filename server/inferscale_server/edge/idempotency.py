"""A repeated write with the same `Idempotency-Key` gets the first one's outcome, also while that one still runs.

Knows: keys, digests of bodies, outcomes. Refuses to know: facts' texts: what is kept are ids, so that a deleted fact is
not recallable from here, and a late retry cannot bring it back. In memory only: after a restart a repeated write meets
the fact store's own check for duplicates.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

from inferscale_server.errors import InvalidRequest, RequestError
from inferscale_server.types import Owner

Outcome = TypeVar("Outcome")

KEYS_PER_OWNER = 16
OWNERS = 1_024

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class IdempotencyConflict(RequestError):
    """The key was used before with another body."""

    status = 409
    type = "invalid_request_error"
    default_code = "idempotency_conflict"


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[Outcome]):
    body_sha256: bytes
    task: asyncio.Task[Outcome]


class OncePerKey(Generic[Outcome]):
    """The outcomes of the last KEYS_PER_OWNER keys of each of the last OWNERS owners. For one event loop."""

    def __init__(self, keys_per_owner: int = KEYS_PER_OWNER, owners: int = OWNERS) -> None:
        self._keys_per_owner = keys_per_owner
        self._owners = owners
        self._attempts: OrderedDict[Owner, OrderedDict[str, _Attempt[Outcome]]] = OrderedDict()

    async def run(
        self, owner: Owner, key: str | None, body: bytes, write: Callable[[], Coroutine[object, object, Outcome]]
    ) -> Outcome:
        """The outcome of `write()`, or of the earlier write with this key; without a key always a new one.

        A write that raises is forgotten: whoever waited for it gets its error, the next try runs again. Raises
        InvalidRequest for a malformed key and IdempotencyConflict for a key that came with another body.
        """
        if key is None:
            return await write()
        if not _KEY.fullmatch(key):
            raise InvalidRequest("the header must be 1 to 255 printable ASCII characters", param="Idempotency-Key")
        attempt = self._attempt(owner, key, hashlib.sha256(body).digest(), write)
        return await _wait(attempt.task)

    def _attempt(
        self, owner: Owner, key: str, body_sha256: bytes, write: Callable[[], Coroutine[object, object, Outcome]]
    ) -> _Attempt[Outcome]:
        of_owner = self._attempts.setdefault(owner, OrderedDict())
        self._attempts.move_to_end(owner)
        known = of_owner.get(key)
        if known is None or _failed(known.task):
            known = of_owner[key] = _Attempt(body_sha256, asyncio.create_task(write()))
        elif known.body_sha256 != body_sha256:
            raise IdempotencyConflict("this key was used with another body", param="Idempotency-Key")
        of_owner.move_to_end(key)
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
