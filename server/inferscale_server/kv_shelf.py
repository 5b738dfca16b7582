"""Which chunk KV lies on the disk: found by key, counted in bytes, oldest use first. Pure bookkeeping.

Refuses to know: files, workers. One writer: the event loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from inferscale_server.kv_codec import KvIdentity

HEADER_SHARE = 8
"""Headers take at most one of so many bytes of the budget."""


@dataclass(frozen=True, slots=True)
class ShelfKey:
    """What a stored chunk is found by; `owner` is `Owner.digest()`."""

    owner: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Chunk KV on the disk: one file a rank, named by `stem`; `size_bytes` is that of all of them."""

    stem: str
    identity: KvIdentity
    size_bytes: int

    @property
    def key(self) -> ShelfKey:
        """What it is found by."""
        return key_of(self.identity)


def key_of(identity: KvIdentity) -> ShelfKey:
    """What chunk KV of this identity is found by."""
    return ShelfKey(identity.owner, identity.kind, identity.name)


class KvShelf:
    """All stored chunks, at most `budget_bytes` of them."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self._header_bytes = 0
        self._stored: OrderedDict[ShelfKey, StoredChunk] = OrderedDict()  # least recently used first
        self._of_owner: dict[str, dict[ShelfKey, StoredChunk]] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: StoredChunk) -> StoredChunk | None:
        """Now the most recently used; returns what it replaces."""
        old = self.drop(stored.key)
        self._stored[stored.key] = stored
        self._of_owner.setdefault(stored.key.owner, {})[stored.key] = stored
        self._weigh(stored, 1)
        return old

    def get(self, key: ShelfKey) -> StoredChunk | None:
        """What is stored under this key; not a use."""
        return self._stored.get(key)

    def use(self, key: ShelfKey) -> StoredChunk | None:
        """What is stored under this key, now the most recently used."""
        stored = self._stored.get(key)
        if stored is not None:
            self._stored.move_to_end(key)
        return stored

    def drop(self, key: ShelfKey) -> StoredChunk | None:
        """Forget that it is stored; returns what it was."""
        stored = self._stored.pop(key, None)
        if stored is not None:
            self._weigh(stored, -1)
            of_owner = self._of_owner[key.owner]
            del of_owner[key]
            if not of_owner:
                del self._of_owner[key.owner]
        return stored

    def all(self) -> tuple[StoredChunk, ...]:
        """Everything, least recently used first."""
        return tuple(self._stored.values())

    def of(self, owner: str) -> tuple[StoredChunk, ...]:
        """What is stored of one owner."""
        return tuple(self._of_owner.get(owner, {}).values())

    def bytes_of(self, owner: str) -> int:
        """Bytes of one owner's files."""
        return sum(stored.size_bytes for stored in self.of(owner))

    def primer_of(self, owner: str, facts: int) -> tuple[str, ...]:
        """The first `facts` facts, or fewer, that most of an owner's chunks were encoded behind, in their order.

        Of those that equally many were encoded behind, the longest: its own facts saw only a part of it.
        """
        primers = Counter(
            tuple(seen.fact_id for seen in stored.identity.behind[:facts])
            for stored in self.of(owner)
            if stored.identity.kind == "fact"
        )
        return max(primers, key=lambda primer: (primers[primer], len(primer)), default=())

    def surplus(self, spare_bytes: int = 0) -> tuple[StoredChunk, ...]:
        """What must go for the budget, and `spare_bytes` less: headers over their share, then what was used longest
        ago."""
        header_room, room = self.budget_bytes // HEADER_SHARE, self.budget_bytes - spare_bytes
        if self.bytes <= room and self._header_bytes <= header_room:
            return ()
        headers = [stored for stored in self._stored.values() if stored.identity.kind == "header"]
        going = _oldest(headers, header_room)
        gone = {stored.stem for stored in going}
        rest = [stored for stored in self._stored.values() if stored.stem not in gone]
        return (*going, *_oldest(rest, room))

    def _weigh(self, stored: StoredChunk, sign: int) -> None:
        self.bytes += sign * stored.size_bytes
        if stored.identity.kind == "header":
            self._header_bytes += sign * stored.size_bytes


def _oldest(oldest_first: list[StoredChunk], room_bytes: int) -> list[StoredChunk]:
    """The first ones, as many as must go for the others to fit."""
    held, going = sum(stored.size_bytes for stored in oldest_first), []
    for stored in oldest_first:
        if held <= room_bytes:
            break
        going.append(stored)
        held -= stored.size_bytes
    return going
