"""The catalog: which chunk KV lies in which slab rows, who uses it, what may be evicted. One writer: the event loop.

The workers' slab is the mirror of this. Rows are handed out again only when no request in flight holds them, and only
after they have been wiped: a fact may be forgotten long after its rows were let go for another reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from inferscale_server.command import Extent
from inferscale_server.eviction import EvictionOrder
from inferscale_server.extents import FreeRows
from inferscale_server.types import Owner

ChunkKind = Literal["header", "fact", "context"]

HEADER_SHARE = 8
"""Headers take at most one of so many rows, or one header alone takes more: system prompts that change with every
request must not push out everybody's facts."""


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """What a chunk KV is of. `name`: a fact's id, or the digest of the tokens. Owner is part of it: texts that two
    users share never share KV."""

    kind: ChunkKind
    owner: Owner
    name: str

    def __hash__(self) -> int:
        """Without the detour through the owner's: a chat looks up fifty keys, several times each."""
        return hash((self.name, self.owner.user, self.owner.tenant))

    def read_by(self, owner: Owner) -> ChunkKey:
        """The same text through the adapter that `owner` names, or none."""
        return ChunkKey(self.kind, replace(self.owner, adapter=owner.adapter), self.name)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Chunk KV that lies in the slab.

    `behind` holds the ids of the facts whose text its keys and values have seen, in order; `fingerprint` says of which
    model, template and recipe it is; `stamp` is new for every encoding.
    """

    key: ChunkKey
    token_ids: tuple[int, ...]
    extents: tuple[Extent, ...]
    behind: tuple[str, ...]
    fingerprint: str
    stamp: int


class _OfOwner(dict[ChunkKey, Chunk]):
    """One owner's chunks. `facts`: ids of those that are facts'; how many they are is asked more often than which.
    `rows`: of all chunks, which every answer tells."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: set[str] = set()
        self.rows = 0

    def __setitem__(self, key: ChunkKey, chunk: Chunk) -> None:
        replaced = self.get(key)
        self.rows += len(chunk.token_ids) - (0 if replaced is None else len(replaced.token_ids))
        super().__setitem__(key, chunk)
        if key.kind == "fact":
            self.facts.add(key.name)

    def __delitem__(self, key: ChunkKey) -> None:
        self.rows -= len(self[key].token_ids)
        super().__delitem__(key)
        if key.kind == "fact":
            self.facts.remove(key.name)


_NONE = _OfOwner()


class Catalog:
    """All chunk KV of one server."""

    def __init__(self, rows: int, fingerprint: str) -> None:
        self.rows = rows
        self.fingerprint = fingerprint
        self.misses: Counter[str] = Counter()
        self.keep: frozenset[ChunkKey] = frozenset()  # never evicted
        self._free = FreeRows(rows)
        self._chunks: dict[ChunkKey, Chunk] = {}
        self._by_stamp: dict[int, Chunk] = {}  # the same
        self._order = EvictionOrder(rows)
        self._of_owner: dict[Owner, _OfOwner] = {}
        self._staged: dict[Owner, _OfOwner] = {}  # complete, and not to be found before `swap`
        self._used: set[ChunkKey] = set()  # since `take_used`
        self._pins: Counter[int] = Counter()  # by stamp
        self._pinned_rows = 0  # of chunks that can be found
        self._unwiped: dict[Extent, None] = {}  # in the order in which they were let go
        self._unwiped_rows = 0
        self._doomed: dict[int, Chunk] = {}  # dropped while pinned
        self.on_unwiped: Callable[[], None] = lambda: None  # called when there are new rows to wipe
        self.on_commit: Callable[[Chunk], None] = lambda chunk: None  # called when a chunk can be found
        self._stamp = 0

    @property
    def rows_used(self) -> int:
        """Rows that hold chunks, are being written, or wait to be wiped."""
        return self.rows - self._free.count

    @property
    def rows_coming(self) -> int:
        """Rows that can be reserved now, or once they are wiped."""
        return self._free.count + self._unwiped_rows

    def fingerprint_of(self, owner: Owner) -> str:
        """Of the model through which these facts are read."""
        return owner.adapter or self.fingerprint

    def reserve(self, key: ChunkKey, token_ids: tuple[int, ...], behind: tuple[str, ...]) -> Chunk | None:
        """Rows for a chunk that is about to be encoded; None when too few are free.

        The chunk cannot be found until `commit`; `release` gives its rows back.
        """
        extents = self._free.take(len(token_ids))
        if extents is None:
            return None
        self._stamp += 1
        return Chunk(key, token_ids, extents, behind, self.fingerprint_of(key.owner), self._stamp)

    def make_room(self, rows: int) -> bool:
        """Evict what was used longest ago, facts and contexts first, until `rows` will be free; True when that worked.

        Of those, what no chat has used goes before the hot set. Evicts nothing when all that may go would not be
        enough. Evicted rows are free once they are wiped.
        """
        coming = self.rows_coming
        if coming >= rows:
            return True
        if coming + self._loose_rows < rows:
            return False
        self._evict(self._order.first_to_go(), rows - coming)
        return True

    def make_room_for(self, lengths: Sequence[int]) -> None:
        """`make_room` for chunks of so many tokens: for all, else for as many of the first as there can be room for."""
        most, rows = self.rows_coming + self._loose_rows, 0
        for length in lengths:
            if rows + length > most:
                break
            rows += length
        self.make_room(rows)

    def make_room_among_headers(self, rows: int) -> None:
        """Evict the headers used longest ago, as long as they and a new one of `rows` are over the headers' share."""
        self._evict(self._order.oldest_headers(), rows + self._order.header_rows - self.rows // HEADER_SHARE)

    def commit(self, chunk: Chunk) -> None:
        """The chunk is complete: it replaces an older one of the same key at once."""
        self.drop(chunk.key)
        self._chunks[chunk.key] = self._by_stamp[chunk.stamp] = chunk
        self._order.add(chunk.stamp, len(chunk.token_ids), header=chunk.key.kind == "header")
        self._pinned_rows += len(chunk.token_ids) if chunk.stamp in self._pins else 0
        self._of_owner.setdefault(chunk.key.owner, _OfOwner())[chunk.key] = chunk
        self.on_commit(chunk)

    def stage(self, chunk: Chunk) -> None:
        """The chunk is complete, and replaces an older one of the same key when its owner's chunks are swapped."""
        of_owner = self._staged.setdefault(chunk.key.owner, _OfOwner())
        if chunk.key in of_owner:
            self._let_go(of_owner[chunk.key])
        of_owner[chunk.key] = chunk

    def staged(self, key: ChunkKey) -> Chunk | None:
        """The chunk that waits for its owner's swap, or None."""
        return self._staged.get(key.owner, _NONE).get(key)

    def swap(self, owner: Owner) -> None:
        """The owner's staged chunks take the place of all others of the owner, at once."""
        self.drop_where(owner, lambda chunk: self.staged(chunk.key) is not chunk)
        for chunk in self._staged.pop(owner, _NONE).values():
            self.commit(chunk)

    def drop_staged(self, owner: Owner) -> None:
        """Give up the owner's staged chunks."""
        for chunk in self._staged.pop(owner, _NONE).values():
            self._let_go(chunk)

    def release(self, chunk: Chunk) -> None:
        """Give up a reserved chunk."""
        self._let_go(chunk)

    def get(self, key: ChunkKey) -> Chunk | None:
        """The chunk, now the most recently used; None, counted by reason, when absent or of another fingerprint."""
        chunk = self._chunks.get(key)
        if chunk is None:
            self.misses["absent"] += 1
            return None
        if chunk.fingerprint != self.fingerprint_of(key.owner):
            self.misses["fingerprint"] += 1
            self.drop(key)
            return None
        self._used.add(chunk.key)
        self._order.use(chunk.stamp)
        return chunk

    def peek(self, key: ChunkKey) -> Chunk | None:
        """The chunk, or None; not a use, and not counted."""
        return self._chunks.get(key)

    def touch(self, chunks: Iterable[Chunk]) -> None:
        """Others are encoded behind these: they are the last to be evicted."""
        for chunk in chunks:
            if self._chunks.get(chunk.key) is chunk:
                self._order.touch(chunk.stamp)

    def holds(self, chunk: Chunk) -> bool:
        """Is this very encoding the one that is found, or will be?"""
        return self._chunks.get(chunk.key) is chunk or self.staged(chunk.key) is chunk

    def take_used(self) -> frozenset[ChunkKey]:
        """What `get` has found since the last call."""
        used, self._used = frozenset(self._used), set()
        return used

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def of(self, owner: Owner) -> tuple[Chunk, ...]:
        """All chunks of an owner that can be found."""
        return tuple(self._of_owner.get(owner, _NONE).values())

    def facts_of(self, owner: Owner) -> Set[str]:
        """Ids of the owner's facts that can be found: a copy."""
        return self._of_owner.get(owner, _NONE).facts.copy()

    def staged_facts_of(self, owner: Owner) -> Set[str]:
        """Ids of the owner's facts that are staged: a copy."""
        return self._staged.get(owner, _NONE).facts.copy()

    def fact_count(self, owner: Owner, *, staged: bool = False) -> int:
        """How many of the owner's facts can be found, or are staged."""
        return len((self._staged if staged else self._of_owner).get(owner, _NONE).facts)

    def row_count(self, owner: Owner) -> int:
        """Rows of all the owner's chunks that can be found. A total that is kept: no chunk is looked at."""
        return self._of_owner.get(owner, _NONE).rows

    def drop(self, key: ChunkKey) -> None:
        """The chunk can no longer be found; its rows are wiped when no request holds them, and then free."""
        chunk = self._chunks.pop(key, None)
        if chunk is None:
            return
        del self._by_stamp[chunk.stamp]
        self._used.discard(key)
        self._order.remove(chunk.stamp)
        self._pinned_rows -= len(chunk.token_ids) if chunk.stamp in self._pins else 0
        of_owner = self._of_owner[key.owner]
        del of_owner[key]
        if not of_owner:
            del self._of_owner[key.owner]
        self._let_go(chunk)

    def drop_where(self, owner: Owner, doomed: Callable[[Chunk], bool]) -> tuple[Chunk, ...]:
        """Drop every chunk of the owner that matches, staged ones too; returns those that could be found."""
        found = tuple(chunk for chunk in self.of(owner) if doomed(chunk))
        for chunk in found:
            self.drop(chunk.key)
        staged = self._staged.get(owner, _NONE)
        for chunk in [chunk for chunk in staged.values() if doomed(chunk)]:
            del staged[chunk.key]
            self._let_go(chunk)
        return found

    def pin(self, chunks: Iterable[Chunk]) -> Pin:
        """Hold the rows of these chunks until the pin is released."""
        stamps = tuple(chunk.stamp for chunk in chunks)
        for stamp in stamps:
            if stamp not in self._pins:
                self._pinned_rows += self._order.rows_of(stamp)
            self._pins[stamp] += 1
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

    def wiped(self, extents: Collection[Extent]) -> None:
        """These rows hold zeros now and may be used again."""
        for extent in extents:
            del self._unwiped[extent]
            self._unwiped_rows -= extent.length
        self._free.give_back(extents)

    def _unpin(self, stamps: tuple[int, ...]) -> None:
        for stamp in stamps:
            self._pins[stamp] -= 1
            if self._pins[stamp] <= 0:
                del self._pins[stamp]
                self._pinned_rows -= self._order.rows_of(stamp)
                doomed = self._doomed.pop(stamp, None)
                if doomed is not None:
                    self._let_go(doomed)

    def _let_go(self, chunk: Chunk) -> None:
        if self._pins.get(chunk.stamp):
            self._doomed[chunk.stamp] = chunk
        else:
            self._unwiped |= dict.fromkeys(chunk.extents)
            self._unwiped_rows += sum(extent.length for extent in chunk.extents)
            self.on_unwiped()

    @property
    def _loose_rows(self) -> int:
        """Rows of all that may go."""
        kept = (chunk for key in self.keep if (chunk := self._chunks.get(key)) is not None)
        kept_rows = sum(len(chunk.token_ids) for chunk in kept if chunk.stamp not in self._pins)
        return self._order.total_rows - self._pinned_rows - kept_rows

    def _evict(self, stamps: Iterable[int], rows: int) -> None:
        """Drop those of these that may go, until that is `rows`."""
        going: list[Chunk] = []
        for chunk in map(self._by_stamp.__getitem__, stamps):
            if rows <= 0:
                break
            if self._evictable(chunk):
                going.append(chunk)
                rows -= len(chunk.token_ids)
        for chunk in going:
            self.drop(chunk.key)

    def _evictable(self, chunk: Chunk) -> bool:
        return not self._pins.get(chunk.stamp) and chunk.key not in self.keep


class Pin:
    """A hold on rows; releasing twice is harmless."""

    def __init__(self, catalog: Catalog, stamps: tuple[int, ...]) -> None:
        self._catalog = catalog
        self._stamps = stamps

    def release(self) -> None:
        """Let go. Only after the engine was told to abort, or has finished, the request that read these rows."""
        stamps, self._stamps = self._stamps, ()
        self._catalog._unpin(stamps)
