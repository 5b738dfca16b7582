"""What makes room, against a slow twin that looks at every chunk each time: the same chunks, in the same order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import TypeVar

import pytest

from inferscale_server.catalog import HEADER_SHARE, Catalog, Chunk, ChunkKey, Pin
from inferscale_server.eviction import HOT_SHARE

from .builders import ALICE

T = TypeVar("T")
ROWS = 40
KEYS = [ChunkKey("header" if number < 5 else "fact", ALICE, str(number)) for number in range(24)]


class Twin(Catalog):
    """A catalog that sorts all it has whenever room is made."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows, "f")
        self.lru: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        self.hot: OrderedDict[ChunkKey, int] = OrderedDict()

    def commit(self, chunk: Chunk) -> None:
        super().commit(chunk)
        self.lru[chunk.key] = chunk

    def drop(self, key: ChunkKey) -> None:
        super().drop(key)
        self.lru.pop(key, None)
        self.hot.pop(key, None)

    def touch(self, chunks: Sequence[Chunk]) -> None:  # type: ignore[override]
        super().touch(chunks)
        for chunk in chunks:
            if self.lru.get(chunk.key) is chunk:
                self.lru.move_to_end(chunk.key)

    def get(self, key: ChunkKey) -> Chunk | None:
        chunk = super().get(key)
        if chunk is not None:
            self.lru.move_to_end(key)
            self.hot[key] = len(chunk.token_ids)
            self.hot.move_to_end(key)
            while sum(self.hot.values()) > self.rows // HOT_SHARE:
                self.hot.popitem(last=False)
        return chunk

    def make_room(self, rows: int) -> bool:
        coming, loose = self.coming(), self.loose()
        if coming < rows and coming + sum(len(chunk.token_ids) for chunk in loose) < rows:
            return False
        for chunk in sorted(loose, key=lambda chunk: (chunk.key.kind == "header", chunk.key in self.hot)):
            if coming >= rows:
                break
            self.drop(chunk.key)
            coming += len(chunk.token_ids)
        return True

    def make_room_for(self, lengths: Sequence[int]) -> None:
        most, rows = self.coming() + sum(len(chunk.token_ids) for chunk in self.loose()), 0
        for length in lengths:
            if rows + length > most:
                break
            rows += length
        self.make_room(rows)

    def make_room_among_headers(self, rows: int) -> None:
        headers = [chunk for chunk in self.lru.values() if chunk.key.kind == "header"]
        held = rows + sum(len(chunk.token_ids) for chunk in headers)
        for chunk in headers:
            if held <= self.rows // HEADER_SHARE:
                return
            if self._evictable(chunk):
                self.drop(chunk.key)
                held -= len(chunk.token_ids)

    def coming(self) -> int:
        """Rows that are free, or will be once they are wiped."""
        return self.rows - self.rows_used + sum(extent.length for extent in self.unwiped)

    def loose(self) -> list[Chunk]:
        """All that may go, least recently used first."""
        return [chunk for chunk in self.lru.values() if self._evictable(chunk)]


class Desk:
    """One catalog, and the pins that are held."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pins: list[Pin] = []

    def do(self, action: str, number: int, rows: int) -> object:
        """One step; what can be seen of it."""
        catalog, key = self.catalog, KEYS[number]
        chunk = catalog.peek(key)
        match action:
            case "store" | "stage":
                catalog.make_room_for([rows, 1])
                catalog.wiped(catalog.unwiped)
                new = catalog.reserve(key, tuple(range(rows)), ())
                if new is not None:
                    self.pins += [catalog.pin([new])] if number % 4 == 0 else []
                    (catalog.commit if action == "store" else catalog.stage)(new)
            case "swap":
                catalog.swap(ALICE)
            case "get":
                return catalog.get(key)
            case "touch" if chunk is not None:
                catalog.touch([chunk])
            case "pin" if chunk is not None:
                self.pins.append(catalog.pin([chunk, chunk]))
            case "unpin" if self.pins:
                self.pins.pop(number % len(self.pins)).release()
            case "drop":
                catalog.drop(key)
            case "keep":
                catalog.keep = frozenset(KEYS[number : number + 3])
            case "room":
                return catalog.make_room(rows + number)
            case "headers":
                catalog.make_room_among_headers(rows)
        return None

    def seen(self) -> object:
        """What the catalog holds, and where."""
        return set(self.catalog.of(ALICE)), self.catalog.rows_coming, self.catalog.unwiped, self.catalog.pins


ACTIONS = {
    "store": 120, "get": 250, "touch": 80, "pin": 20, "unpin": 40, "drop": 4, "keep": 6, "room": 3, "headers": 6,
    "stage": 2, "swap": 1,
}  # fmt: skip
"""How often each is done: enough is held, hot and no longer hot when room is made."""


@pytest.mark.parametrize("seed", range(20))
def test_what_makes_room_is_what_a_look_at_every_chunk_finds(seed: int) -> None:
    dice, fast, slow = Random(seed), Desk(Catalog(ROWS, "f")), Desk(Twin(ROWS))
    for action in dice.choices(list(ACTIONS), list(ACTIONS.values()), k=500):
        number, rows = dice.randrange(len(KEYS)), dice.randint(1, 4)
        assert fast.do(action, number, rows) == slow.do(action, number, rows)
        assert fast.seen() == slow.seen()


class Counted(dict[int, T]):
    """Counts what is looked up in it."""

    looks = 0

    def __getitem__(self, stamp: int) -> T:
        self.looks += 1
        return super().__getitem__(stamp)


def test_room_is_made_without_a_look_at_what_stays() -> None:
    catalog = Catalog(1_000, "f")
    for number in range(1_000):
        chunk = catalog.reserve(ChunkKey("fact", ALICE, str(number)), (0,), ())
        assert chunk is not None
        catalog.commit(chunk)
    order = catalog._order._others
    catalog._by_stamp = found = Counted(catalog._by_stamp)
    order._when = walked = Counted(order._when)
    catalog.make_room_for([1] * 8)
    assert len(catalog.of(ALICE)) == 992 and max(found.looks, walked.looks) <= 10
