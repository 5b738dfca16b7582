"""Whose facts the encoder has looked through: once an event, not once a batch, and in a thread where they are many.

Knows: what happens to an owner's facts while a thread looks at them. Refuses to know: what is looked for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from inferscale_server.roster import LOOP_FACTS, Roster
from inferscale_server.types import Fact, Owner

OWNERS = 64
"""Rosters that are kept; an owner who was not at work for longer is looked through again."""


class Rosters:
    """The rosters of the owners that were last at work. Belongs to one event loop."""

    def __init__(
        self, facts_of: Callable[[Owner], Sequence[Fact]], count_of: Callable[[Owner], int] = lambda owner: 0
    ) -> None:
        """`facts_of` gives all of an owner's, oldest first, in any thread; `count_of` how many, without a look."""
        self._facts_of, self._count_of = facts_of, count_of
        self._rosters: OrderedDict[Owner, Roster] = OrderedDict()
        self._meanwhile: dict[Owner, list[Callable[[Roster], bool]]] = {}  # what happens while one is made

    async def prepare(self, owner: Owner) -> None:
        """Look through the owner's facts, if they are not known; in a thread if they are many."""
        while owner not in self._rosters and self._count_of(owner) >= LOOP_FACTS:
            meanwhile: list[Callable[[Roster], bool]] = []
            self._meanwhile[owner] = meanwhile
            roster = await asyncio.to_thread(lambda: Roster(self._facts_of(owner)))
            if self._meanwhile.get(owner) is not meanwhile:  # something else changed
                continue
            del self._meanwhile[owner]
            if all(followed(roster) for followed in meanwhile):
                self._rosters[owner] = roster

    def of(self, owner: Owner) -> Roster:
        """The owner's facts, looked through if they are not known."""
        if owner not in self._rosters:
            self._rosters[owner] = Roster(self._facts_of(owner))
        while len(self._rosters) > OWNERS:
            self._rosters.popitem(last=False)
        self._rosters.move_to_end(owner)
        return self._rosters[owner]

    def append(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These are new, or have been rewritten."""
        self._change(owner, lambda roster: roster.append(facts))

    def remove(self, owner: Owner, fact_ids: Collection[str]) -> None:
        """These are gone."""
        self._change(owner, lambda roster: roster.remove(fact_ids))

    def drop(self, owner: Owner) -> None:
        """Something else changed: look through the owner's facts when they are next asked for."""
        self._rosters.pop(owner, None)
        self._meanwhile.pop(owner, None)

    def _change(self, owner: Owner, change: Callable[[Roster], bool]) -> None:
        if owner in self._meanwhile:
            self._meanwhile[owner].append(change)
        elif owner in self._rosters and not change(self._rosters[owner]):
            self.drop(owner)
