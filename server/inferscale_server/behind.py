"""What a chunk is encoded behind, as tokens: the header, and the lines of other facts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from inferscale_server.catalog import ChunkKey
from inferscale_server.kv_codec import MAX_SEEN, KvIdentity, Seen, digest_of


@dataclass(frozen=True, slots=True)
class Line:
    """One fact as it stands in a prompt; `mark` is the digest of what it says."""

    fact_id: str
    token_ids: tuple[int, ...]
    mark: str


@dataclass(frozen=True, slots=True)
class Behind:
    """The header's tokens, then lines in their order. Nothing unless told."""

    header: tuple[int, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def fact_ids(self) -> tuple[str, ...]:
        """The facts whose text keys and values encoded behind this have seen, in order."""
        return tuple(line.fact_id for line in self.lines)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All of it."""
        return (*self.header, *chain.from_iterable(line.token_ids for line in self.lines))

    def then(self, line: Line) -> Behind:
        """What stands before the next line."""
        return Behind(self.header, (*self.lines, line))

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
            before_digest=digest_of(self.token_ids),
            behind=tuple(Seen(line.fact_id, line.mark) for line in self.lines),
        )


def mark_of(line: str) -> str:
    """Names what a fact said, so that KV of an older wording is known as such."""
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def fitting(header: tuple[int, ...], lines: Sequence[Line], room_tokens: int, ahead: int | None = None) -> Behind:
    """Header and lines in their order, as far as they fit into `room_tokens` together and into a KV file's header.

    Args:
        ahead: so many lines are taken from the first one on, and of the others the last ones: a window's nearest facts
            stand last. None: all from the first one on.
    """
    ahead = len(lines) if ahead is None else ahead
    room_tokens -= len(header)
    kept: dict[int, Line] = {}
    for place in (*range(ahead), *reversed(range(ahead, len(lines)))):
        line = lines[place]
        if len(line.token_ids) <= room_tokens and len(kept) < MAX_SEEN:
            kept[place] = line
            room_tokens -= len(line.token_ids)
    return Behind(header, tuple(kept[place] for place in sorted(kept)))
