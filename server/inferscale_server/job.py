"""One chunk to encode: its tokens, the request that encodes it, and the engine that it is sent to.

Pure words and arithmetic; refuses to know the queue (encode.py) and vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inferscale_server.behind import Behind, EncodedPrimer, mark_of
from inferscale_server.catalog import Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command, Extent
from inferscale_server.kv_codec import digest_of
from inferscale_server.types import Fact, Owner
from inferscale_server.wording import fact_line

EncodeResult = Literal["stored", "loaded", "incomplete", "failed", "dropped"]
"""What became of a chunk; only "loaded" had no encode request."""


class EncodeEngine(Protocol):
    """The serving engine as the encoder sees it."""

    async def encode(self, prompt_ids: Sequence[int], command: Command) -> None:
        """Prefill the prompt with the command's injection and capture; under a salt of its own."""

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        """For each (stamp, rows): was it written completely, on every rank?"""

    async def wipe(self, extents: Sequence[Extent]) -> None:
        """Zero these rows on every rank."""


@dataclass(frozen=True, slots=True)
class Job:
    """One chunk to encode: its own tokens behind the prefix's. `mark` is the digest of a fact's own line."""

    key: ChunkKey
    token_ids: tuple[int, ...]
    mark: str = ""


def request_for(chunk: Chunk, primer: EncodedPrimer | None) -> tuple[tuple[int, ...], Command]:
    """The prompt and the command that encode a chunk: primer (injected), its own tokens, throw-away tokens."""
    injection = primer.injection_for(chunk.key.name) if primer is not None else None
    before = injection.token_ids if injection is not None else ()
    capture = Capture(chunk.stamp, len(before), chunk.extents)
    return (*before, *chunk.token_ids, *chunk.token_ids[:1] * SPARE_TOKENS), Command(injection, capture)


def supersedes(new: ChunkKey, old: ChunkKey) -> bool:
    """An owner's new primer makes older ones useless."""
    return old.kind == new.kind and old.owner == new.owner and old != new


def line_of(fact: Fact) -> str:
    """The fact as it stands in a prompt."""
    return fact_line(fact.text, fact.speaker, fact.occurred_at)


def marks_of(facts: Iterable[Fact]) -> dict[str, str]:
    """Digest of each fact's line, by fact id: KV files that bear another are of an older wording."""
    return {fact.id: mark_of(line_of(fact)) for fact in facts}


def primer_job(owner: Owner, behind: Behind, header: Job) -> Job:
    """The job that encodes what facts are encoded behind: the header alone when no fact is in it."""
    if not behind.text.spans:
        return header
    return Job(ChunkKey("primer", owner, digest_of(behind.text.token_ids)), behind.text.token_ids)
