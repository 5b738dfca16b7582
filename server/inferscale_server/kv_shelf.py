"""Which chunk KV lies on the disk: found by key, counted in bytes, oldest use first. Pure bookkeeping.

Refuses to know: files, workers. One writer: the event loop.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from inferscale_server.kv_codec import KvIdentity

HEADER_SHARE = 8
"""Headers take at most one of so many bytes of the budget."""


@dataclass(frozen=True, slots=True)
class ShelfKey:
    """What a stored chunk is found by; `owner` is `Owner.digest()`. Another model's KV has another fingerprint."""

    fingerprint: str
    owner: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Chunk KV on the disk: one file each of `ranks`, named by `stem`; `size_bytes` is that of all of them."""

    stem: str
    identity: KvIdentity
    size_bytes: int
    ranks: int = 1

    @property
    def key(self) -> ShelfKey:
        """What it is found by."""
        return key_of(self.identity)


def key_of(identity: KvIdentity) -> ShelfKey:
    """What chunk KV of this identity is found by."""
    return ShelfKey(identity.fingerprint, identity.owner, identity.kind, identity.name)


Seen = tuple[str, ...]
"""The ids of the facts that a chunk was encoded behind, in their order."""


class KvShelf:
    """All stored chunks, at most `budget_bytes` of them. Those of other fingerprints than `fingerprint`, and those that
    were adopted since, go first."""

    def __init__(self, budget_bytes: int, fingerprint: str) -> None:
        self.budget_bytes = budget_bytes
        self.bytes = 0
        self._fingerprint = fingerprint
        self._adopted: set[str] = set()
        self._header_bytes = 0  # of ours
        self._stored: OrderedDict[ShelfKey, StoredChunk] = OrderedDict()  # least recently used first
        self._others: OrderedDict[ShelfKey, StoredChunk] = OrderedDict()  # those of them that are not ours
        self._headers: OrderedDict[ShelfKey, StoredChunk] = OrderedDict()  # our headers among them
        self._of_owner: dict[str, dict[Seen, dict[ShelfKey, StoredChunk]]] = {}
        self._fingerprints: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()  # by owner
        self._tokens_of: dict[str, dict[str, int]] = {}  # of our facts, by owner and fact

    def __len__(self) -> int:
        return len(self._stored)

    def adopt(self, fingerprint: str) -> None:
        """This is of an adapter that is served here: not for a start to come, as other fingerprints are."""
        if fingerprint in self._adopted:
            return
        self._adopted.add(fingerprint)
        self._others = OrderedDict(
            (key, stored) for key, stored in self._others.items() if not self._is_ours(stored.identity)
        )
        ours = ((key, stored) for key, stored in self._stored.items() if self._is_ours(stored.identity))
        self._headers = OrderedDict((key, stored) for key, stored in ours if key.kind == "header")
        self._header_bytes = sum(stored.size_bytes for stored in self._headers.values())

    def put(self, stored: StoredChunk) -> StoredChunk | None:
        """Now the most recently used; returns what it replaces."""
        old = self.drop(stored.key)
        for line in self._lines(stored):
            line[stored.key] = stored
        groups = self._of_owner.setdefault(stored.key.owner, {})
        groups.setdefault(_seen_by(stored), {})[stored.key] = stored
        self._weigh(stored, 1)
        return old

    def get(self, key: ShelfKey) -> StoredChunk | None:
        """What is stored under this key; not a use."""
        return self._stored.get(key)

    def use(self, key: ShelfKey) -> StoredChunk | None:
        """What is stored under this key, now the most recently used."""
        stored = self._stored.get(key)
        if stored is not None:
            for line in self._lines(stored):
                line.move_to_end(key)
        return stored

    def drop(self, key: ShelfKey) -> StoredChunk | None:
        """Forget that it is stored; returns what it was."""
        stored = self._stored.get(key)
        if stored is not None:
            for line in self._lines(stored):
                del line[key]
            self._weigh(stored, -1)
            groups, seen = self._of_owner[key.owner], _seen_by(stored)
            del groups[seen][key]
            if not groups[seen]:
                del groups[seen]
            if not groups:
                del self._of_owner[key.owner]
        return stored

    def all(self) -> tuple[StoredChunk, ...]:
        """Everything, least recently used first."""
        return tuple(self._stored.values())

    def of(self, owner: str) -> tuple[StoredChunk, ...]:
        """What is stored of one owner."""
        return tuple(stored for group in self._of_owner.get(owner, {}).values() for stored in group.values())

    def touching(self, owner: str, fact_ids: Set[str]) -> tuple[StoredChunk, ...]:
        """What is of one of these facts of the owner, or was encoded behind one; of whichever fingerprint."""
        groups = self._of_owner.get(owner, {})
        behind = [
            stored for seen, group in groups.items() if not fact_ids.isdisjoint(seen) for stored in group.values()
        ]
        keys = (ShelfKey(print_, owner, "fact", fact_id) for print_ in self._fingerprints for fact_id in fact_ids)
        own = (self._stored[key] for key in keys if key in self._stored)
        return (*behind, *(stored for stored in own if fact_ids.isdisjoint(_seen_by(stored))))

    def owners_with(self, fingerprint: str) -> frozenset[str]:
        """Who has facts stored under this fingerprint. Looks at everything."""
        return frozenset(key.owner for key in self._stored if key.kind == "fact" and key.fingerprint == fingerprint)

    def bytes_of(self, owner: str) -> int:
        """Bytes of one owner's files."""
        return self._bytes_of[owner]

    def fact_tokens(self, owner: str) -> dict[str, int]:
        """Tokens of each of the owner's facts that are stored under our fingerprint, by fact id: a copy."""
        return self._tokens_of.get(owner, {}).copy()

    def primer_of(self, owner: str, facts: int, fingerprint: str) -> tuple[str, ...]:
        """The first `facts` facts, or fewer, that most of an owner's chunks of this fingerprint were encoded behind.

        In their order. Of those that equally many were encoded behind, the longest: its own facts saw only a part.
        """
        primers: Counter[Seen] = Counter()
        for seen, group in self._of_owner.get(owner, {}).items():
            primers[seen[:facts]] += sum(key.fingerprint == fingerprint and key.kind == "fact" for key in group)
        found = [primer for primer in primers if primers[primer]]
        return max(found, key=lambda primer: (primers[primer], len(primer)), default=())

    def most_bytes(self, identity: KvIdentity) -> int:
        """What one chunk may take: a larger one would push out all others, and then go itself."""
        headers_only = identity.kind == "header" and self._is_ours(identity)
        return self.budget_bytes // HEADER_SHARE if headers_only else self.budget_bytes

    def surplus(self, spare_bytes: int = 0) -> tuple[StoredChunk, ...]:
        """What must go for the budget, and `spare_bytes` less: headers over their share, then those of other
        fingerprints, then others; of each, what was used longest ago."""
        header_room, room = self.budget_bytes // HEADER_SHARE, self.budget_bytes - spare_bytes
        if self.bytes <= room and self._header_bytes <= header_room:
            return ()
        headers = _oldest(self._headers.values(), self._header_bytes - header_room)
        gone = {stored.stem for stored in headers}
        ours = (one for one in self._stored.values() if self._is_ours(one.identity) and one.stem not in gone)
        left = self.bytes - sum(stored.size_bytes for stored in headers)
        return (*headers, *_oldest(chain(self._others.values(), ours), left - room))

    def _lines(self, stored: StoredChunk) -> Sequence[OrderedDict[ShelfKey, StoredChunk]]:
        """The orders in which it stands."""
        if not self._is_ours(stored.identity):
            return self._stored, self._others
        return (self._stored, self._headers) if stored.identity.kind == "header" else (self._stored,)

    def _is_ours(self, identity: KvIdentity) -> bool:
        return identity.fingerprint == self._fingerprint or identity.fingerprint in self._adopted

    def _weigh(self, stored: StoredChunk, sign: int) -> None:
        self.bytes += sign * stored.size_bytes
        self._weigh_owner(stored, sign)
        self._fingerprints[stored.identity.fingerprint] += sign
        if not self._fingerprints[stored.identity.fingerprint]:
            del self._fingerprints[stored.identity.fingerprint]
        if self._is_ours(stored.identity) and stored.identity.kind == "header":
            self._header_bytes += sign * stored.size_bytes

    def _weigh_owner(self, stored: StoredChunk, sign: int) -> None:
        owner = stored.key.owner
        self._bytes_of[owner] += sign * stored.size_bytes
        if not self._bytes_of[owner]:
            del self._bytes_of[owner]
        if stored.identity.fingerprint != self._fingerprint or stored.identity.kind != "fact":
            return
        tokens = self._tokens_of.setdefault(owner, {})
        if sign > 0:
            tokens[stored.key.name] = stored.identity.tokens
            return
        del tokens[stored.key.name]
        if not tokens:
            del self._tokens_of[owner]


def _seen_by(stored: StoredChunk) -> Seen:
    return tuple(seen.fact_id for seen in stored.identity.behind)


def _oldest(oldest_first: Iterable[StoredChunk], over_bytes: int) -> list[StoredChunk]:
    """The first ones, as many as must go for so many bytes. Looks at no more than go."""
    going: list[StoredChunk] = []
    chunks = iter(oldest_first)
    while over_bytes > 0 and (stored := next(chunks, None)) is not None:
        going.append(stored)
        over_bytes -= stored.size_bytes
    return going
