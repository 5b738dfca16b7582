"""Which facts of each owner wait for their KV, in order: looked through once an event, not once a batch.

An owner may have 100,000 facts, and a batch is a few: a long order is made in a thread, what is new or wanted is put
into it, and what waits no more, or is gone, falls out when its turn comes. Knows: an order. Refuses to know: why a fact
waits, and how many do.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from inferscale_server.roster import LOOP_FACTS
from inferscale_server.types import Fact, Owner

IDLE_LINES = 64
"""Owners without anything that waits whose next facts need no look at all the others."""


@dataclass(slots=True)
class Line:
    """Ids of one owner's facts: what must be done before what a chat asked for, that, and all others."""

    first: deque[str] = field(default_factory=deque)
    wanted: deque[str] = field(default_factory=deque)
    others: deque[str] = field(default_factory=deque)

    @property
    def empty(self) -> bool:
        """Is nothing left?"""
        return not (self.first or self.wanted or self.others)


@dataclass(frozen=True, slots=True)
class Sorting:
    """What an order is made of, as of one moment. Ids; `facts` oldest first."""

    facts: Sequence[str]
    primer: Sequence[str] = ()
    done: Set[str] = frozenset()
    old: Set[str] = frozenset()
    wanted: Set[str] = frozenset()

    def line(self) -> Line:
        """The primer's facts, which stand before all others; those that are to be replaced, so that the new generation
        can serve soon; those that a chat asked for; the rest."""
        there, done = set(self.facts), self.done | set(self.primer)
        first = [fact_id for fact_id in self.primer if fact_id in there and fact_id not in self.done]
        others = [fact_id for fact_id in self.facts if fact_id not in done]
        old = [fact_id for fact_id in others if fact_id in self.old]
        first += sorted(old, key=lambda fact_id: fact_id not in self.wanted)
        rest = [fact_id for fact_id in others if fact_id not in self.old] if old else others
        wanted = [fact_id for fact_id in rest if fact_id in self.wanted]
        if wanted:
            rest = [fact_id for fact_id in rest if fact_id not in self.wanted]
        return Line(deque(first), deque(wanted), deque(rest))


class Backlog:
    """The order is made when it is first asked for and kept until `drop`. Belongs to one event loop."""

    def __init__(self, sorting: Callable[[Owner], Sorting], waiting: Callable[[Owner, str], Fact | None]) -> None:
        """`sorting` is asked on the loop; `waiting` gives the fact of this id if there is one and it still waits."""
        self._sorting, self._waiting = sorting, waiting
        self._lines: dict[Owner, Line] = {}
        self._coming: dict[Owner, Line] = {}  # what came while a line is made
        self._idle: OrderedDict[Owner, None] = OrderedDict()

    async def prepare(self, owner: Owner) -> None:
        """Make the order if there is none; a long one in a thread. `first` needs nothing more until the next await."""
        while owner not in self._lines:
            sorting = self._sorting(owner)
            if len(sorting.facts) < LOOP_FACTS:
                self._lines[owner] = sorting.line()
                return
            coming = self._coming[owner] = Line()
            line = await asyncio.to_thread(sorting.line)
            if self._coming.get(owner) is coming:  # else something changed meanwhile
                del self._coming[owner]
                line.wanted.extend(coming.wanted)
                line.others.extend(coming.others)
                self._lines[owner] = line

    def first(self, owner: Owner, number: int) -> list[Fact]:
        """The next facts that wait, at most `number`; they stay in the line until they wait no more."""
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = self._sorting(owner).line()
        found: dict[str, Fact] = {}
        for part in (line.first, line.wanted, line.others):
            self._take(owner, part, number, found)
        if line.empty:
            self._rest(owner)
        return list(found.values())

    def idle(self, owner: Owner) -> bool:
        """Was the owner's line worked off, and nothing came since?"""
        return owner in self._idle

    def append(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """These are new, and come last."""
        line = self._lines.get(owner, self._coming.get(owner))
        if line is not None:
            line.others.extend(fact_ids)
        self._idle.pop(owner, None)

    def hurry(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """A chat asked for these: they come before the others."""
        line = self._lines.get(owner, self._coming.get(owner))
        if line is not None:
            line.wanted.extend(fact_ids)
        self._idle.pop(owner, None)

    def drop(self, owner: Owner) -> None:
        """Something else changed: make the order anew when it is next asked for."""
        self._lines.pop(owner, None)
        self._coming.pop(owner, None)
        self._idle.pop(owner, None)

    def _take(self, owner: Owner, part: deque[str], number: int, found: dict[str, Fact]) -> None:
        taken = []
        while part and len(found) < number:
            fact_id = part.popleft()
            fact = None if fact_id in found else self._waiting(owner, fact_id)
            if fact is not None:
                found[fact_id] = fact
                taken.append(fact_id)
        part.extendleft(reversed(taken))

    def _rest(self, owner: Owner) -> None:
        self._idle[owner] = None
        self._idle.move_to_end(owner)
        while len(self._idle) > IDLE_LINES:
            self._lines.pop(self._idle.popitem(last=False)[0], None)
