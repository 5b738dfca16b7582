"""Which facts of each owner wait for their KV, in order: looked through once an event, not once a batch.

An owner may have 100,000 facts, and a batch is a few. Knows: an order. Refuses to know: why a fact waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice

from inferscale_server.types import Fact, Owner


class Backlog:
    """The order is made when it is first asked for and kept until `drop`; what is done falls out at the front."""

    def __init__(self, order: Callable[[Owner], Sequence[Fact]], waits: Callable[[Fact], bool]) -> None:
        """`order` looks through all of an owner's facts; `waits` says whether one still waits."""
        self._order, self._waits = order, waits
        self._lines: dict[Owner, deque[Fact]] = {}
        self._taken = 0  # the most that were ever taken at once: more than twice as many never lie done in front

    def first(self, owner: Owner, number: int) -> list[Fact]:
        """The next facts that wait, at most `number`; they stay in the line until they wait no more."""
        self._taken = max(self._taken, number)
        line = self._line(owner)
        found: list[Fact] = []
        while line and len(found) < number:
            fact = line.popleft()
            if self._waits(fact):
                found.append(fact)
        line.extendleft(reversed(found))
        if not line:
            del self._lines[owner]
        return found

    def count(self, owner: Owner) -> int:
        """How many wait."""
        line = self._line(owner)
        return len(line) - sum(not self._waits(fact) for fact in islice(line, 2 * self._taken))

    def append(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These are new, and come last."""
        if owner in self._lines:
            self._lines[owner].extend(facts)

    def remove(self, owner: Owner, fact_ids: Collection[str]) -> None:
        """These are gone, and nothing else has changed: the order of the others stays."""
        line = self._lines.pop(owner, None)
        if line is not None and (left := deque(fact for fact in line if fact.id not in fact_ids)):
            self._lines[owner] = left

    def drop(self, owner: Owner) -> None:
        """Something else changed: make the order anew when it is next asked for."""
        self._lines.pop(owner, None)

    def _line(self, owner: Owner) -> deque[Fact]:
        if owner not in self._lines:
            self._lines[owner] = deque(self._order(owner))
        return self._lines[owner]
