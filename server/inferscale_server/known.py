"""What the hot path reads instead of SQL: every stored fact and every owner's epoch, in memory.

Knows: copies of what the fact store holds. Refuses to know: disk, vectors. One writer thread changes it; readers take
no lock, because each read is a single dictionary lookup.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from inferscale_server.types import Fact, Owner

LEAST_REBUILT = 16
"""So many of an owner's facts may change their time before their order is made anew."""


class FactBook(Protocol):
    """Another copy, which follows this one in the writer thread."""

    def add(self, facts: Iterable[Fact]) -> None:
        """These are known now, or say something else."""

    def remove(self, owner: Owner, fact_ids: Collection[str]) -> None:
        """These are gone; some may never have been there."""

    def remove_owner(self, owner: Owner) -> None:
        """All of the owner's are gone."""


@dataclass(slots=True)
class _Mortal:
    """One owner's facts that expire some day. `first` (Unix seconds): before it, none of them has."""

    ends: dict[str, float] = field(default_factory=dict)  # by fact
    queue: list[tuple[float, str]] = field(default_factory=list)  # a heap; what is not in `ends` any more goes late
    first: float = float("inf")

    def put(self, fact_id: str, end: float) -> None:
        if self.ends.get(fact_id) == end:
            return
        self.ends[fact_id] = end
        heapq.heappush(self.queue, (end, fact_id))
        self._settle()

    def drop(self, fact_id: str) -> None:
        self.ends.pop(fact_id, None)
        self._settle()

    def due(self, now: float) -> list[str]:
        """The facts whose time has come, in any order. From any thread: the heap's copy is walked from its root."""
        queue, places, found = self.queue.copy(), [0], dict[str, None]()
        while places:
            place = places.pop()
            if place < len(queue) and queue[place][0] <= now:
                end, fact_id = queue[place]
                if self.ends.get(fact_id) == end:
                    found[fact_id] = None
                places += (2 * place + 1, 2 * place + 2)
        return list(found)

    def _settle(self) -> None:
        while self.queue and self.ends.get(self.queue[0][1]) != self.queue[0][0]:
            heapq.heappop(self.queue)
        if len(self.queue) > 2 * len(self.ends) + LEAST_REBUILT:
            self.queue = sorted((end, fact_id) for fact_id, end in self.ends.items())
        self.first = self.queue[0][0] if self.queue else float("inf")


class KnownFacts:
    """Facts by owner and id, epochs by owner. Facts whose time has come are here until they are swept."""

    def __init__(self, also: FactBook) -> None:
        """`also` hears of every change."""
        self._also = also
        self._facts: dict[Owner, dict[str, Fact]] = {}
        self._mortal: dict[Owner, _Mortal] = {}
        self._epochs: dict[str, int] = {}

    def add(self, facts: Iterable[Fact]) -> None:
        """Make facts readable; a changed fact takes its old version's place."""
        for fact in facts:
            self._facts.setdefault(fact.owner, {})[fact.id] = fact
            if fact.expires_at is None:
                self._drop_mortal(fact.owner, fact.id)
            else:
                self._mortal.setdefault(fact.owner, _Mortal()).put(fact.id, fact.expires_at)
            self._also.add((fact,))

    def lead(self, also: FactBook) -> None:
        """Another book follows from now on."""
        self._also = also
        for of_owner in self._facts.copy().values():
            also.add(of_owner.values())

    def get(self, owner: Owner, fact_id: str) -> Fact | None:
        """The owner's fact; None when it is unknown, deleted, or another owner's."""
        return self._facts.get(owner, {}).get(fact_id)

    def of(self, owner: Owner) -> tuple[Fact, ...]:
        """All facts of the owner, oldest first."""
        return tuple(self._facts.get(owner, {}).copy().values())

    def overdue(self, owner: Owner, now: float) -> tuple[str, ...]:
        """The owner's facts whose time has come by `now` (Unix seconds) and that were not swept yet.

        Every chat asks, so it takes as long as they are many, however many more expire some day.
        """
        mortal = self._mortal.get(owner)
        if mortal is None or now < mortal.first:
            return ()
        facts = ((fact_id, self.get(owner, fact_id)) for fact_id in mortal.due(now))
        return tuple(fact_id for fact_id, fact in facts if fact is not None and fact.expired(now))

    def owners(self) -> tuple[Owner, ...]:
        """All owners that have facts."""
        return tuple(self._facts.copy())

    def count(self, owner: Owner) -> int:
        """How many facts the owner has."""
        return len(self._facts.get(owner, {}))

    def drop(self, owner: Owner, fact_id: str) -> None:
        """Forget one fact; harmless when it is unknown."""
        of_owner = self._facts.get(owner, {})
        of_owner.pop(fact_id, None)
        self._also.remove(owner, (fact_id,))
        self._drop_mortal(owner, fact_id)
        if not of_owner:
            self._facts.pop(owner, None)

    def drop_owner(self, owner: Owner) -> None:
        """Forget all facts of one owner; the epoch stays."""
        self._facts.pop(owner, None)
        self._also.remove_owner(owner)
        self._mortal.pop(owner, None)

    def epoch(self, owner: Owner) -> int:
        """The owner's epoch, 0 when nothing of the owner was ever deleted or rewritten."""
        return self._epochs.get(owner.digest(), 0)

    def bump_epoch(self, owner: Owner) -> None:
        """Follow a delete or a rewriting that the fact store has committed."""
        self._epochs[owner.digest()] = self.epoch(owner) + 1

    def set_epochs(self, epochs: Mapping[str, int]) -> None:
        """Start from the stored epochs, by `Owner.digest()`."""
        self._epochs.update(epochs)

    def _drop_mortal(self, owner: Owner, fact_id: str) -> None:
        mortal = self._mortal.get(owner)
        if mortal is None:
            return
        mortal.drop(fact_id)
        if not mortal.ends:
            self._mortal.pop(owner, None)
