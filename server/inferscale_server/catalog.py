"""The catalog: which chunk KV lies in which slab rows, who uses it, what may be evicted. One writer: the event loop.

The workers' slab is the mirror of this. Rows are handed out again only when no request in flight holds them, and rows
of forgotten facts only after they have been wiped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from inferscale_server.command import Extent
from inferscale_server.extents import FreeRows
from inferscale_server.types import Owner

ChunkKind = Literal["header", "primer", "fact", "context"]


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """What a chunk KV is of. `name`: a fact's id, or the digest of the tokens. Owner is part of it: texts that two
    users share never share KV."""

    kind: ChunkKind
    owner: Owner
    name: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk KV that lies in the slab.

    `behind` holds the ids of the facts whose text its keys and values have seen; `fingerprint` says of which model,
    template and recipe it is; `stamp` is new for every encoding.
    """

    key: ChunkKey
    token_ids: tuple[int, ...]
    extents: tuple[Extent, ...]
    behind: frozenset[str]
    fingerprint: str
    stamp: int


class Catalog:
    """All chunk KV of one server."""

    def __init__(self, rows: int, fingerprint: str) -> None:
        self.rows = rows
        self.fingerprint = fingerprint
        self.misses: Counter[str] = Counter()
        self._free = FreeRows(rows)
        self._chunks: OrderedDict[ChunkKey, Chunk] = OrderedDict()  # least recently used first
        self._pins: Counter[int] = Counter()  # by stamp
        self._unwiped: list[Extent] = []
        self._doomed: dict[int, tuple[Chunk, bool]] = {}  # dropped while pinned; True: wipe before reuse
        self.on_unwiped: Callable[[], None] = lambda: None  # called when there are new rows to wipe
        self._stamp = 0

    @property
    def rows_used(self) -> int:
        """Rows that hold chunks, are being written, or wait to be wiped."""
        return self.rows - self._free.count

    def reserve(
        self, key: ChunkKey, token_ids: tuple[int, ...], behind: frozenset[str], evict: bool = True
    ) -> Chunk | None:
        """Rows for a chunk that is about to be encoded, evicting what was used longest ago; None when it cannot fit.

        The chunk cannot be found until `commit`; `release` gives its rows back.
        """
        if evict and self._free.count < len(token_ids):
            self._evict_for(len(token_ids))
        extents = self._free.take(len(token_ids))
        if extents is None:
            return None
        self._stamp += 1
        return Chunk(key, token_ids, extents, behind, self.fingerprint, self._stamp)

    def commit(self, chunk: Chunk) -> None:
        """The chunk is complete: it replaces an older one of the same key at once."""
        old = self._chunks.pop(chunk.key, None)
        if old is not None:
            self._let_go(old, wipe=False)
        self._chunks[chunk.key] = chunk

    def release(self, chunk: Chunk, wipe: bool = False) -> None:
        """Give up a reserved chunk; `wipe` when its text was forgotten meanwhile."""
        self._let_go(chunk, wipe)

    def get(self, key: ChunkKey) -> Chunk | None:
        """The chunk, now the most recently used; None, counted by reason, when absent or of another fingerprint."""
        chunk = self._chunks.get(key)
        if chunk is None:
            self.misses["absent"] += 1
            return None
        if chunk.fingerprint != self.fingerprint:
            self.misses["fingerprint"] += 1
            self.drop(key)
            return None
        self._chunks.move_to_end(key)
        return chunk

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def of(self, owner: Owner) -> tuple[Chunk, ...]:
        """All chunks of an owner."""
        return tuple(chunk for key, chunk in self._chunks.items() if key.owner == owner)

    def drop(self, key: ChunkKey, wipe: bool = False) -> None:
        """The chunk can no longer be found; its rows are free when no request holds them (and they are wiped)."""
        chunk = self._chunks.pop(key, None)
        if chunk is not None:
            self._let_go(chunk, wipe)

    def drop_where(self, doomed: Callable[[Chunk], bool]) -> tuple[Chunk, ...]:
        """Drop and wipe every chunk that matches; returns them."""
        for stamp, (chunk, _) in self._doomed.items():
            self._doomed[stamp] = (chunk, self._doomed[stamp][1] or doomed(chunk))
        found = tuple(chunk for chunk in self._chunks.values() if doomed(chunk))
        for chunk in found:
            self.drop(chunk.key, wipe=True)
        return found

    def pin(self, chunks: Iterable[Chunk]) -> Pin:
        """Hold the rows of these chunks until the pin is released."""
        stamps = tuple(chunk.stamp for chunk in chunks)
        self._pins.update(stamps)
        return Pin(self, stamps)

    @contextmanager
    def pinned(self, chunks: Iterable[Chunk]) -> Iterator[None]:
        """Hold the rows of these chunks for the length of a block."""
        pin = self.pin(chunks)
        try:
            yield
        finally:
            pin.release()

    @property
    def pins(self) -> int:
        """Chunks held by requests in flight."""
        return len(self._pins)

    @property
    def unwiped(self) -> tuple[Extent, ...]:
        """Rows to be zeroed by the workers; give them to `wiped` afterwards."""
        return tuple(self._unwiped)

    def wiped(self, extents: Sequence[Extent]) -> None:
        """These rows hold zeros now and may be used again."""
        self._unwiped = [extent for extent in self._unwiped if extent not in extents]
        self._free.give_back(extents)

    def _unpin(self, stamps: tuple[int, ...]) -> None:
        for stamp in stamps:
            self._pins[stamp] -= 1
            if self._pins[stamp] <= 0:
                del self._pins[stamp]
                doomed = self._doomed.pop(stamp, None)
                if doomed is not None:
                    self._let_go(*doomed)

    def _let_go(self, chunk: Chunk, wipe: bool) -> None:
        if self._pins.get(chunk.stamp):
            self._doomed[chunk.stamp] = (chunk, wipe)
        elif wipe:
            self._unwiped.extend(chunk.extents)
            self.on_unwiped()
        else:
            self._free.give_back(chunk.extents)

    def _evict_for(self, rows: int) -> None:
        """Make `rows` free: facts and contexts first, longest unused first; nothing when that would not be enough."""
        loose = [chunk for chunk in self._chunks.values() if not self._pins.get(chunk.stamp)]
        if self._free.count + sum(len(chunk.token_ids) for chunk in loose) < rows:
            return
        for chunk in sorted(loose, key=lambda chunk: chunk.key.kind in ("primer", "header")):
            if self._free.count >= rows:
                return
            self.drop(chunk.key)


class Pin:
    """A hold on rows; releasing twice is harmless."""

    def __init__(self, catalog: Catalog, stamps: tuple[int, ...]) -> None:
        self._catalog = catalog
        self._stamps = stamps

    def release(self) -> None:
        """Let go. Only after the engine was told to abort, or has finished, the request that read these rows."""
        stamps, self._stamps = self._stamps, ()
        self._catalog._unpin(stamps)
