"""What the hot path reads instead of SQL: every stored fact and every owner's epoch, in memory.

Knows: copies of what the fact store holds. Refuses to know: disk, vectors. One writer thread changes it; readers take
no lock, because each read is a single dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from inferscale_server.types import Fact, Owner


class KnownFacts:
    """Facts by owner and id, epochs by owner."""

    def __init__(self) -> None:
        self._facts: dict[Owner, dict[str, Fact]] = {}
        self._epochs: dict[str, int] = {}

    def add(self, facts: Iterable[Fact]) -> None:
        """Make facts readable."""
        for fact in facts:
            self._facts.setdefault(fact.owner, {})[fact.id] = fact

    def get(self, owner: Owner, fact_id: str) -> Fact | None:
        """The owner's fact; None when it is unknown, deleted, or another owner's."""
        return self._facts.get(owner, {}).get(fact_id)

    def of(self, owner: Owner) -> tuple[Fact, ...]:
        """All facts of the owner, oldest first."""
        return tuple(self._facts.get(owner, {}).copy().values())

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
        if not of_owner:
            self._facts.pop(owner, None)

    def drop_owner(self, owner: Owner) -> None:
        """Forget all facts of one owner; the epoch stays."""
        self._facts.pop(owner, None)

    def epoch(self, owner: Owner) -> int:
        """The owner's epoch, 0 when nothing of the owner was ever deleted."""
        return self._epochs.get(owner.digest(), 0)

    def bump_epoch(self, owner: Owner) -> None:
        """Follow a delete that the fact store has committed."""
        self._epochs[owner.digest()] = self.epoch(owner) + 1

    def set_epochs(self, epochs: Mapping[str, int]) -> None:
        """Start from the stored epochs, by `Owner.digest()`."""
        self._epochs.update(epochs)
