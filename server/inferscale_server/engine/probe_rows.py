"""Slab rows that only the gate uses: captured on demand, let go of when it is through.

Knows the catalog and the door; refuses to know what is compared (probe.py, probe_quality.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command, Extent, Injection
from inferscale_server.engine.difference import Difference
from inferscale_server.types import LOCAL_TENANT, Owner


class ProbeFault(Exception):
    """A probe could not be carried out; the message is for the operator."""


class NoRoom(ProbeFault):
    """The slab has too few rows for a probe."""


class CaptureDoor(Protocol):
    """The part of the engine's door that captures and compares."""

    async def encode(self, prompt_ids: Sequence[int], command: Command) -> None:
        """Prefill a prompt with a command."""

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        """Which attempts are complete?"""

    async def difference(self, extents: Sequence[Extent], others: Sequence[Extent]) -> Difference:
        """How far two encodings are apart."""


class ProbeRows:
    """Chunks under a name that no owner has. `close` gives their rows back, to be zeroed by whoever drains next."""

    def __init__(self, door: CaptureDoor, catalog: Catalog) -> None:
        self._door, self._catalog = door, catalog
        self._chunks: list[Chunk] = []

    async def capture(self, before: Injection | None, own: Sequence[int]) -> Chunk:
        """Encode tokens behind an injected prefix. Raises NoRoom, and ProbeFault when not all of it was captured."""
        key = ChunkKey("context", Owner(LOCAL_TENANT, ""), f"gate-{len(self._chunks)}")
        chunk = self._catalog.reserve(key, tuple(own), ())
        if chunk is None:
            raise NoRoom(f"the slab has no {len(own)} rows free; give it more with --kv-device-gib")
        self._chunks.append(chunk)
        ids = () if before is None else before.token_ids
        prompt = (*ids, *own, *chunk.token_ids[:1] * SPARE_TOKENS)
        await self._door.encode(prompt, Command(before, (Capture(chunk.stamp, len(ids), chunk.extents),)))
        if not all(await self._door.captured([(chunk.stamp, chunk.extents)])):
            raise ProbeFault(f"not all keys and values of {len(own)} tokens behind {len(ids)} injected ones arrived")
        return chunk

    async def difference(self, extents: Sequence[Extent], others: Sequence[Extent]) -> Difference:
        """How far two encodings of as many tokens are apart."""
        return await self._door.difference(extents, others)

    def close(self) -> None:
        """Give all rows back."""
        while self._chunks:
            self._catalog.release(self._chunks.pop())


def joined(parts: Sequence[Injection | Chunk]) -> Injection:
    """One injection of these, one behind the other."""
    token_ids = tuple(token for part in parts for token in part.token_ids)
    return Injection(token_ids, tuple(extent for part in parts for extent in part.extents))


def last_rows(extents: Sequence[Extent], count: int) -> tuple[Extent, ...]:
    """The extents of the last `count` rows."""
    rows = [row for extent in extents for row in range(extent.row, extent.row + extent.length)]
    return tuple(Extent(row, 1) for row in rows[len(rows) - count :])
