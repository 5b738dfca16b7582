"""What a fact is encoded behind, as tokens and rows: the primer's chunk, or the part of it before the fact.

Pure. A fact that stands in its own primer must not see its copy there: it would then be encoded as a repetition, whose
content lies in a copy that no prompt holds. It is encoded behind the primer's facts that stand before it instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferscale_server.catalog import Chunk
from inferscale_server.command import Injection
from inferscale_server.extents import first_rows


@dataclass(frozen=True, slots=True)
class Span:
    """Token positions start … stop-1 of a primer."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PrimerText:
    """The tokens of header and primer facts, and where each fact's line stands in them."""

    token_ids: tuple[int, ...]
    spans: Mapping[str, Span] = field(default_factory=dict)


def primer_text(header: Sequence[int], lines: Mapping[str, tuple[int, ...]], room_tokens: int) -> PrimerText:
    """Header, then the lines by fact id in their order, as long as they fit into `room_tokens`."""
    token_ids, spans = list(header), {}
    for fact_id, line in lines.items():
        if len(token_ids) + len(line) <= room_tokens:
            spans[fact_id] = Span(len(token_ids), len(token_ids) + len(line))
            token_ids.extend(line)
    return PrimerText(tuple(token_ids), spans)


@dataclass(frozen=True, slots=True)
class EncodedPrimer:
    """An encoded primer."""

    chunk: Chunk
    text: PrimerText

    def injection_for(self, fact_id: str) -> Injection:
        """All of it, or what stands before the fact's own line."""
        span = self.text.spans.get(fact_id)
        length = len(self.chunk.token_ids) if span is None else span.start
        return Injection(self.chunk.token_ids[:length], first_rows(self.chunk.extents, length))
