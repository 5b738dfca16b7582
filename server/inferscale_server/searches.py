"""Searches of one server: a short one on the event loop, since a hop to a thread costs more, a long one in a thread.

Knows: how long a search takes, and that facts come and go while a thread searches. Refuses to know: embedding, disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from inferscale_server.errors import Unavailable
from inferscale_server.filters import Filter
from inferscale_server.index import Accept, VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.nearest import Question, nearest
from inferscale_server.trigrams import TrigramIndex
from inferscale_server.types import Fact, Hit, Owner, Scored

T = TypeVar("T")

LOOP_BYTES = 8 * 2**20
"""An owner's vectors up to which a search stays on the event loop: 5,000 of 384 dimensions, a third of a millisecond.

All of them are read, so bytes say how long it takes. A hop to the thread and back costs 0.06 ms when nothing else runs,
and milliseconds when other threads hold the interpreter.
"""
LOOP_FACTS = 2_000
"""As many facts may be looked at one by one there, by a filter or by letters."""
TRIES = 3
"""A search whose facts went meanwhile is made anew; under deletes without end the answer is shorter instead."""
OVERDUE_BESIDE = 100
"""So many facts whose time has come, and that nobody has swept yet, are asked for in addition and dropped. With more,
every fact is looked at, and no graph can help."""


@dataclass(frozen=True, slots=True, eq=False)
class Sought:
    """What one search is for: the owner's `k` facts nearest to a question, of those that match."""

    owner: Owner
    question: Question
    k: int
    min_score: float | None = None
    where: Filter | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What the index is asked: `spare` more than the k that are sought, because so many will be dropped."""

    accept: Accept | None
    spare: int


class Searches:
    """For one event loop. `now` in Unix seconds."""

    def __init__(self, known: KnownFacts, now: Callable[[], float]) -> None:
        self._known, self._now = known, now
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inferscale-search")
        self._closed = False

    async def find(self, index: VectorIndex, trigrams: TrigramIndex, sought: Sought) -> tuple[Hit, ...]:
        """The best facts, best first. Those that were deleted, or match no more, by the time that this returns are not
        among them. Raises Unavailable once closed."""
        hits: tuple[Hit, ...] = ()
        for _ in range(TRIES):
            asked = self._asked(sought)
            how = (sought.k + asked.spare, sought.min_score, asked.accept)
            search = partial(nearest, index, trigrams, sought.owner, sought.question, *how)
            found = await self._beside(search) if self._is_long(index, trigrams, sought) else search()
            hits = self._hits(sought, found)
            if len(found) - len(hits) <= asked.spare:
                break
        return hits[: sought.k]

    async def matching(self, owner: Owner, where: Filter) -> list[str]:
        """Ids of all the owner's facts that match now, oldest first. Many are looked at in the thread, in slices: other
        searches have their turn in between. Raises Unavailable like `find`."""
        now, facts = self._now(), self._known.of(owner)

        def of(some: Sequence[Fact]) -> list[str]:
            return [fact.id for fact in some if not fact.expired(now) and where.matches(fact)]

        if len(facts) < LOOP_FACTS:
            return of(facts)
        found: list[str] = []
        for at in range(0, len(facts), LOOP_FACTS):
            found += await self._beside(partial(of, facts[at : at + LOOP_FACTS]))
        return found

    def accept(self, owner: Owner, where: Filter | None) -> Accept | None:
        """What of this owner may be found now; None for everything."""
        if where is None and not self._known.overdue(owner, self._now()):
            return None
        return self._only(owner, where)

    def _only(self, owner: Owner, where: Filter | None) -> Accept:
        now = self._now()

        def accept(fact_id: str) -> bool:
            fact = self._known.get(owner, fact_id)
            return fact is not None and not fact.expired(now) and (where is None or where.matches(fact))

        return accept

    async def aclose(self) -> None:
        """Finish what has begun. Later calls raise Unavailable."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)

    def _asked(self, sought: Sought) -> _Asked:
        """A graph can answer only where nothing need be accepted."""
        if sought.where is None:
            overdue = len(self._known.overdue(sought.owner, self._now()))
            if overdue <= OVERDUE_BESIDE:
                return _Asked(None, overdue)
        return _Asked(self._only(sought.owner, sought.where), 0)

    def _is_long(self, index: VectorIndex, trigrams: TrigramIndex, sought: Sought) -> bool:
        owner = sought.owner
        one_by_one = trigrams.count(owner) if sought.where is None else self._known.count(owner)
        return one_by_one >= LOOP_FACTS or index.bytes(owner) > LOOP_BYTES

    async def _beside(self, search: Callable[[], T]) -> T:
        """In the thread: numpy lets go of the interpreter while it multiplies."""
        if self._closed:
            raise Unavailable("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._thread, search)

    def _hits(self, sought: Sought, found: Sequence[Scored]) -> tuple[Hit, ...]:
        """What of this is there now, and matches as it reads now."""
        accept = self._only(sought.owner, sought.where)
        facts = ((self._known.get(sought.owner, scored.fact_id), scored.score) for scored in found)
        return tuple(Hit(fact, score) for fact, score in facts if fact is not None and accept(fact.id))
