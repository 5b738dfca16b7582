"""An owner's facts as recipes see them: their order and their sessions.

An owner may have 100,000 facts: a new one is put behind them, and one that goes leaves a gap. Refuses to know what a
recipe makes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice

from inferscale_server.types import Fact

LOOP_FACTS = 2_000
"""Of an owner with fewer facts all are looked through on the event loop: 2 ms."""
FEW_GAPS = 64


class Roster:
    """All facts of one owner, oldest first."""

    def __init__(self, facts: Sequence[Fact] = ()) -> None:
        self._order: list[str] = []  # with gaps, where a fact has gone
        self._facts: dict[str, Fact] = {}
        self._places: dict[str, int] = {}
        self._sessions: dict[str | float | None, dict[str, None]] = {}
        self._newest = -1
        self.append(facts)

    @property
    def ids(self) -> list[str]:
        """Of all facts, oldest first; a copy."""
        return list(self._facts)

    def append(self, facts: Sequence[Fact]) -> bool:
        """These are newer than all others; those that are here already are passed over.

        False when one is not: it was rewritten, and keeps its place, so that all must be looked through.
        """
        for fact in facts:
            if fact.id not in self._facts:
                if fact.seq < self._newest:
                    return False
                self._facts[fact.id] = fact
                self._places[fact.id] = len(self._order)
                self._order.append(fact.id)
                self._sessions.setdefault(session_of(fact), {})[fact.id] = None
                self._newest = fact.seq
        return True

    def remove(self, fact_ids: Collection[str]) -> bool:
        """These are gone; some may never have been here. False when there are more gaps than facts by now."""
        for fact_id in fact_ids:
            fact = self._facts.pop(fact_id, None)
            if fact is not None:
                del self._places[fact_id]
                del self._sessions[session_of(fact)][fact_id]
        return len(self._order) <= 2 * len(self._facts) + FEW_GAPS

    def __len__(self) -> int:
        return len(self._facts)

    def __contains__(self, fact_id: object) -> bool:
        return fact_id in self._facts

    def fact(self, fact_id: str) -> Fact:
        """The fact of this id, which must be here."""
        return self._facts[fact_id]

    def get(self, fact_id: str) -> Fact | None:
        """The fact of this id, None when it is not here."""
        return self._facts.get(fact_id)

    def place(self, fact_id: str) -> int:
        """How many facts are older, or were before they went; for an unknown one, how many there are."""
        return self._places.get(fact_id, len(self._order))

    def before(self, fact_id: str, count: int) -> list[str]:
        """The `count` facts just before this one, oldest first; fewer when there are fewer."""
        found: list[str] = []
        place = self.place(fact_id)
        while place > 0 and len(found) < count:
            place -= 1
            if self._places.get(self._order[place]) == place:
                found.append(self._order[place])
        return found[::-1]

    def session(self, fact: Fact, count: int) -> list[str]:
        """The first `count` facts of the fact's session, oldest first."""
        return list(islice(self._sessions.get(session_of(fact), {}), count))


def session_of(fact: Fact) -> str | float | None:
    """Which conversation a fact is of: its session, else the moment that it was said at."""
    return fact.session_id if fact.session_id is not None else fact.occurred_at
