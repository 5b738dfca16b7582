"""Each owner's primer: the one that serving chunks were encoded behind, and the one that is on its way.

When an owner has grown, everything is encoded again behind a new primer while the old KV serves; then all of it is
swapped at once, so that no prompt mixes chunks of two primers. Runs on the event loop; a choice is made in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from inferscale_server.catalog import Catalog
from inferscale_server.recipe import Primer, Recipe
from inferscale_server.rosters import Rosters
from inferscale_server.types import Owner
from inferscale_server.vectors import FactVectors


class Primers:
    """The primers of all owners, and which generation of an owner's chunks is being encoded."""

    def __init__(
        self,
        recipe: Recipe,
        catalog: Catalog,
        rosters: Rosters,
        vectors_of: Callable[[Owner], FactVectors],
        stored: Callable[[Owner], tuple[str, ...]],
    ) -> None:
        """`stored` gives the primer of an earlier start: another choice would encode everything again."""
        self._recipe, self._catalog, self._rosters = recipe, catalog, rosters
        self._vectors_of, self._stored = vectors_of, stored
        self._serving: dict[Owner, Primer] = {}
        self._coming: dict[Owner, Primer] = {}
        self._choosing: set[Owner] = set()  # leaves it when something is forgotten meanwhile

    def of(self, owner: Owner) -> Primer:
        """What the owner's facts are encoded behind now."""
        return self._coming.get(owner) or self._serving.get(owner) or Primer()

    def staging(self, owner: Owner) -> bool:
        """Is the owner encoded anew while older KV serves?"""
        return owner in self._coming

    async def choose(self, owner: Owner) -> bool:
        """Bring the owner's primer up to the facts that there are; did it change?"""
        current = self._current(owner)
        chosen = await self._chosen(owner, current)
        if chosen != self._serving.get(owner) and chosen != self._coming.get(owner):
            self._take(owner, chosen)
        return chosen.fact_ids != current.fact_ids

    def swap(self, owner: Owner) -> None:
        """What is staged serves from now on, and nothing older."""
        self._serving[owner] = self._coming.pop(owner)
        self._catalog.swap(owner)

    def forget(self, owner: Owner, gone: Set[str]) -> None:
        """These facts are gone, and with them, by the caller, what was encoded behind them.

        Of the serving primer the part before the first of them is left: chunks behind that part still serve.
        """
        self._choosing.discard(owner)
        coming, serving = self._coming.get(owner, Primer()), self._serving.get(owner, Primer())
        if not gone.isdisjoint(coming.fact_ids):
            del self._coming[owner]
            self._catalog.drop_staged(owner)
        if not gone.isdisjoint(serving.fact_ids):
            first = next(place for place, fact_id in enumerate(serving.fact_ids) if fact_id in gone)
            self._serving[owner] = Primer(serving.fact_ids[:first])

    def forget_owner(self, owner: Owner) -> None:
        """All of the owner's facts are gone."""
        self._choosing.discard(owner)
        self._serving.pop(owner, None)
        self._coming.pop(owner, None)

    def _current(self, owner: Owner) -> Primer:
        if owner not in self._serving and owner not in self._coming:
            ids, roster = self._stored(owner), self._rosters.of(owner)
            if ids and all(fact_id in roster for fact_id in ids):
                # How many facts there were at that choice is not stored; the newest of them was there.
                self._serving[owner] = Primer(ids, 1 + max(map(roster.place, ids)))
        return self.of(owner)

    async def _chosen(self, owner: Owner, current: Primer) -> Primer:
        """Chosen from facts that are all still there; a choice among many takes a tenth of a second."""
        while True:
            roster = self._rosters.of(owner)
            if not self._recipe.due(len(roster), current):
                return self._recipe.primer(roster, current, lambda: self._vectors_of(owner))
            self._choosing.add(owner)
            chosen = await asyncio.to_thread(self._recipe.primer, roster, current, lambda: self._vectors_of(owner))
            if owner in self._choosing:
                self._choosing.discard(owner)
                return chosen
            current = self._current(owner)

    def _take(self, owner: Owner, chosen: Primer) -> None:
        coming, serving = self._coming.pop(owner, None), self._serving.get(owner, Primer())
        if coming is not None and coming.fact_ids == chosen.fact_ids:
            self._coming[owner] = chosen
            return
        self._catalog.drop_staged(owner)
        if chosen.extends(serving) or not any(chunk.key.kind == "fact" for chunk in self._catalog.of(owner)):
            self._serving[owner] = chosen
        else:
            self._coming[owner] = chosen
