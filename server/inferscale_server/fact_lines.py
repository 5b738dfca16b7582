"""Facts as the tokens of their lines, each rendered once: a chat shows fifty, and rendering took most of its planning.

Knows: that a fact which reads differently is another object. Refuses to know: what is encoded, and what is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferscale_server.catalog import ChunkKey
from inferscale_server.job import line_of
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import Fact, Owner
from inferscale_server.wording import Wording

KEPT_LINES = 200_000
"""Of all owners together; those of the owner who asked longest ago go first."""


@dataclass(frozen=True, slots=True)
class FactLine:
    """One fact as its tokens, and the key under which its KV would lie."""

    fact: Fact
    key: ChunkKey
    token_ids: tuple[int, ...]


class FactLines:
    """The lines of facts that chats have found, by owner. Forgets what is deleted, as the memory service tells."""

    def __init__(self, tokenize: LineTokenizer, wording: Wording) -> None:
        self._tokenize, self._wording = tokenize, wording
        self._of_owner: OrderedDict[Owner, dict[str, FactLine]] = OrderedDict()  # asked longest ago first
        self._count = 0

    def of(self, owner: Owner, facts: Sequence[Fact], *, keep: bool = True) -> list[FactLine]:
        """A line for each of these facts of one owner, in their order. `keep` False: some may be forgotten already, and
        nobody would tell of them again."""
        if not facts:
            return []
        if not keep:
            kept = self._of_owner.get(owner, {})
            kept = {fact.id: kept[fact.id] for fact in facts if fact.id in kept}
            return [self._line(kept, fact, owner) for fact in facts]
        kept = self._of_owner.setdefault(owner, {})
        self._of_owner.move_to_end(owner)
        before = len(kept)
        lines = [self._line(kept, fact, owner) for fact in facts]
        self._count += len(kept) - before
        while self._count > KEPT_LINES and len(self._of_owner) > 1:
            self._count -= len(self._of_owner.popitem(last=False)[1])
        return lines

    def forget_facts(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """These were deleted or rewritten."""
        kept = self._of_owner.get(owner, {})
        self._count -= sum(kept.pop(fact_id, None) is not None for fact_id in fact_ids)

    def forget_owner(self, owner: Owner) -> None:
        """All of the owner's were deleted."""
        self._count -= len(self._of_owner.pop(owner, {}))

    def __len__(self) -> int:
        """Lines that are kept."""
        return self._count

    def _line(self, kept: dict[str, FactLine], fact: Fact, owner: Owner) -> FactLine:
        line = kept.get(fact.id)
        if line is None or line.fact is not fact:
            token_ids = self._tokenize(line_of(fact, self._wording), fact.owner)
            line = kept[fact.id] = FactLine(fact, ChunkKey("fact", owner, fact.id), token_ids)
        return line
