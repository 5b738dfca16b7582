"""Encoding recipes: what text a fact is encoded behind. The one place to change how facts come to see each other.

A recipe only chooses; encode.py carries it out. Measurements: docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a fact is encoded behind: nothing at all, or the default header and then these facts' lines, in order."""

    header: bool
    fact_ids: tuple[str, ...] = ()


class Recipe(Protocol):
    """Chooses the prefix that all facts of an owner are encoded behind. Deterministic, pure."""

    @property
    def name(self) -> str:
        """Part of the fingerprint: chunks of another recipe are not served."""

    def prefix(self, oldest_first: Sequence[str], current: Prefix | None) -> Prefix:
        """The prefix to use now.

        Args:
            oldest_first: ids of all facts that the owner has.
            current: the prefix that the owner's chunks were encoded behind; the same value back means that they stay.
        """


@dataclass(frozen=True, slots=True)
class Isolated:
    """Facts encoded alone, at position 0 (the paper's w = 0): cheapest, and they do not see each other."""

    name: str = "isolated"

    def prefix(self, oldest_first: Sequence[str], current: Prefix | None) -> Prefix:
        """Nothing, whatever facts there are."""
        return Prefix(header=False)


@dataclass(frozen=True, slots=True)
class Primer:
    """Header and the owner's oldest facts, up to `facts` of them, the same set for all of the owner's facts.

    While there are fewer, the set grows when the owner has doubled: every fact is encoded about twice over a life, and
    the old KV serves meanwhile.
    """

    facts: int = 20

    @property
    def name(self) -> str:
        """Names the size, which changes what is computed."""
        return f"primer-{self.facts}"

    def prefix(self, oldest_first: Sequence[str], current: Prefix | None) -> Prefix:
        """The current primer as long as all its facts exist and it is full or the owner has not doubled since."""
        if current is not None and current.fact_ids and set(current.fact_ids) <= set(oldest_first):
            full = len(current.fact_ids) >= self.facts
            if full or len(oldest_first) < 2 * len(current.fact_ids):
                return current
        return Prefix(header=True, fact_ids=tuple(oldest_first[: self.facts]))


def make_recipe(name: str, primer_facts: int) -> Recipe:
    """The recipe that the configuration names."""
    return Primer(primer_facts) if name == "primer" else Isolated()


@lru_cache(maxsize=64)
def seen_behind(prefix: Prefix) -> frozenset[str]:
    """The facts that a chunk behind this prefix has seen. Kept, because it is asked for each fact of an owner."""
    return frozenset(prefix.fact_ids)
