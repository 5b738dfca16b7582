"""All sessions of one server: bounded by number, by number an owner, and by idle time. Lives on the event loop.

A session is derived: losing one costs a conversation its prefix cache once. Knows owners and ids; refuses to know what
is in a block.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from inferscale_server.session import Session
from inferscale_server.types import Owner

MAX_PER_OWNER = 64
"""Sessions that one owner can keep, so that one user's cannot push out everybody's."""


@dataclass(frozen=True, slots=True)
class _Key:
    owner: Owner
    session_id: str


@dataclass(slots=True)
class _Kept:
    session: Session
    used_at: float


class Sessions:
    """Sessions by owner and id, the least recently used first to go."""

    def __init__(
        self, most: int, idle_s: float, per_owner: int = MAX_PER_OWNER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`most` sessions in all; one that was not used for `idle_s` seconds is forgotten."""
        self._most, self._idle_s, self._per_owner, self._clock = most, idle_s, per_owner, clock
        self._kept: OrderedDict[_Key, _Kept] = OrderedDict()  # least recently used first
        self._of_owner: dict[Owner, OrderedDict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, owner: Owner, session_id: str) -> Session:
        """The owner's session, now the most recently used; a new one if there is none."""
        self._forget_idle()
        key = _Key(owner, session_id)
        kept = self._kept.setdefault(key, _Kept(Session(), 0.0))
        kept.used_at = self._clock()
        self._kept.move_to_end(key)
        ids = self._of_owner.setdefault(owner, OrderedDict())
        ids[session_id] = None
        ids.move_to_end(session_id)
        self._bound(owner, ids)
        return kept.session

    def forget_facts(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """These were deleted or rewritten, and the owner's salt with them: none of the owner's blocks can be hit again.

        So no session of theirs keeps a text from before.
        """
        for session_id in self._of_owner.get(owner, ()):
            self._kept[_Key(owner, session_id)].session.drop("facts_changed")

    def forget_block(self, owner: Owner, session_id: str, digest: str) -> None:
        """The plan with this digest cannot serve any more: a session that still keeps it chooses anew."""
        kept = self._kept.get(_Key(owner, session_id))
        block = None if kept is None else kept.session.block
        if kept is not None and block is not None and block.plan.digest == digest:
            kept.session.drop("kv_gone")

    def forget_owner(self, owner: Owner) -> None:
        """The owner has no sessions any more."""
        for session_id in tuple(self._of_owner.get(owner, ())):
            self._forget(_Key(owner, session_id))

    def forget_idle(self) -> int:
        """Forget what was not used for too long; returns how many sessions are left."""
        self._forget_idle()
        return len(self._kept)

    def _forget_idle(self) -> None:
        since = self._clock() - self._idle_s
        while self._kept and next(iter(self._kept.values())).used_at < since:
            self._forget(next(iter(self._kept)))

    def _bound(self, owner: Owner, ids: OrderedDict[str, None]) -> None:
        while len(ids) > self._per_owner:
            self._forget(_Key(owner, next(iter(ids))))
        while len(self._kept) > self._most:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: _Key) -> None:
        # Emptied too: a turn in flight may still hold it, and must not bring a forgotten text back.
        self._kept.pop(key).session.drop("first_turn")
        ids = self._of_owner[key.owner]
        del ids[key.session_id]
        if not ids:
            del self._of_owner[key.owner]
