"""An owner's facts as recipes see them: their order and their sessions. Looked through once an event, not once a batch.

An owner may have 100,000 facts. Refuses to know what a recipe makes of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from inferscale_server.types import Fact, Owner

OWNERS = 64
"""Rosters that are kept; an owner who was not at work for longer is looked through again."""


class Roster:
    """All facts of one owner, oldest first."""

    def __init__(self, facts: Sequence[Fact] = ()) -> None:
        self.ids: list[str] = []
        self._facts: dict[str, Fact] = {}
        self._places: dict[str, int] = {}
        self._sessions: dict[str | float | None, list[str]] = {}
        self.append(facts)

    def append(self, facts: Sequence[Fact]) -> None:
        """These are newer than all others; those that are here already are passed over."""
        for fact in facts:
            if fact.id not in self._facts:
                self._facts[fact.id] = fact
                self._places[fact.id] = len(self.ids)
                self.ids.append(fact.id)
                self._sessions.setdefault(session_of(fact), []).append(fact.id)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, fact_id: object) -> bool:
        return fact_id in self._facts

    def fact(self, fact_id: str) -> Fact:
        """The fact of this id, which must be here."""
        return self._facts[fact_id]

    def place(self, fact_id: str) -> int:
        """How many facts are older; for an unknown one, how many there are."""
        return self._places.get(fact_id, len(self.ids))

    def session(self, fact: Fact) -> Sequence[str]:
        """All facts of the fact's session, oldest first."""
        return self._sessions.get(session_of(fact), ())


def session_of(fact: Fact) -> str | float | None:
    """Which conversation a fact is of: its session, else the moment that it was said at."""
    return fact.session_id if fact.session_id is not None else fact.occurred_at


class Rosters:
    """The rosters of the owners that were last at work."""

    def __init__(self, facts_of: Callable[[Owner], Sequence[Fact]]) -> None:
        """`facts_of` gives all of an owner's, oldest first."""
        self._facts_of = facts_of
        self._rosters: OrderedDict[Owner, Roster] = OrderedDict()

    def of(self, owner: Owner) -> Roster:
        """The owner's facts, looked through if they are not known."""
        if owner not in self._rosters:
            self._rosters[owner] = Roster(self._facts_of(owner))
            while len(self._rosters) > OWNERS:
                self._rosters.popitem(last=False)
        self._rosters.move_to_end(owner)
        return self._rosters[owner]

    def append(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These are new."""
        if owner in self._rosters:
            self._rosters[owner].append(facts)

    def drop(self, owner: Owner) -> None:
        """Something else changed: look through the owner's facts when they are next asked for."""
        self._rosters.pop(owner, None)
