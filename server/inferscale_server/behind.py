"""What a fact is encoded behind, as tokens and rows: the primer's chunk, or the part of it before the fact.

Pure. A fact that stands in its own primer must not see its copy there: it would then be encoded as a repetition, whose
content lies in a copy that no prompt holds. It is encoded behind the primer's facts that stand before it instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inferscale_server.catalog import Chunk, ChunkKey
from inferscale_server.command import Injection
from inferscale_server.extents import first_rows
from inferscale_server.kv_codec import KvIdentity, Seen, digest_of


@dataclass(frozen=True, slots=True)
class Span:
    """Token positions start … stop-1 of a primer."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PrimerText:
    """The tokens of header and primer facts, and where each fact's line stands in them."""

    token_ids: tuple[int, ...] = ()
    spans: Mapping[str, Span] = field(default_factory=dict)

    def before(self, fact_id: str) -> tuple[int, ...]:
        """All of it, or what stands before the fact's own line."""
        span = self.spans.get(fact_id)
        return self.token_ids if span is None else self.token_ids[: span.start]


@dataclass(frozen=True, slots=True)
class Behind:
    """What a batch is encoded behind: the text, and the facts in it, in order. Nothing unless told."""

    text: PrimerText = PrimerText()
    seen: tuple[Seen, ...] = ()

    @property
    def fact_ids(self) -> frozenset[str]:
        """The facts whose text keys and values encoded behind this have seen."""
        return frozenset(seen.fact_id for seen in self.seen)

    def identity(self, fingerprint: str, key: ChunkKey, mark: str, token_ids: Sequence[int]) -> KvIdentity:
        """What chunk KV of these tokens, encoded behind this, is; `mark` is the digest of a fact's own line."""
        return KvIdentity(
            fingerprint=fingerprint,
            owner=key.owner.digest(),
            kind=key.kind,
            name=key.name,
            mark=mark,
            tokens=len(token_ids),
            token_digest=digest_of(token_ids),
            before_digest=digest_of(self.text.before(key.name)),
            behind=self.seen,
        )


def mark_of(line: str) -> str:
    """Names what a fact said, so that KV of an older wording is known as such."""
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:32]


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
        length = len(self.text.before(fact_id))
        return Injection(self.chunk.token_ids[:length], first_rows(self.chunk.extents, length))
