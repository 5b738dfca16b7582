"""The event loop stays free while much is stored, forgotten, exported and filtered, and while it is encoded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inferscale_server.filters import parse_filter
from inferscale_server.types import FactDraft, Owner
from tests.memory.desk import Desk, open_desk

ALICE, BOB, CAROL = (Owner("local", user) for user in ("alice", "bob", "carol"))
STORED, ADDED, DELETED, SEARCHES = 5_000, 1_000, 1_000, 20
ROWS = 60_000
TICK_S = 0.001
LONGEST_GAP_S = 0.25
"""Five times the promise."""


@dataclass
class Ticker:
    """What else the event loop would have to do: its longest wait, in seconds."""

    longest_s: float = 0.0
    ticks: int = 0
    _task: list[asyncio.Task[None]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Ticker]:
        task = asyncio.create_task(self._tick())
        try:
            yield self
        finally:
            await asyncio.sleep(0)
            task.cancel()

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self.longest_s, self.ticks, last = max(self.longest_s, now - last), self.ticks + 1, now


@dataclass(frozen=True)
class Load:
    """A desk with 5,000 facts of Alice's and 1,000 of Bob's, and what may be asked of it."""

    desk: Desk
    doomed: list[str]

    async def add(self) -> None:
        await self.desk.add(CAROL, [f"carol saw bird {number}" for number in range(ADDED)])
        assert self.desk.memory.count(CAROL) == ADDED

    async def delete(self) -> None:
        await asyncio.gather(*(self.desk.memory.delete(BOB, fact_id) for fact_id in self.doomed))
        assert self.desk.memory.count(BOB) == 0

    async def export(self) -> None:
        assert [fact.seq async for fact in self.desk.memory.export(ALICE)] != []

    async def search(self) -> None:
        rare = parse_filter({"shelf": 7})
        for number in range(SEARCHES):
            hits = await self.desk.memory.search(ALICE, f"book {number}", 20, where=rare)
            assert len(hits) == 20

    async def list(self) -> None:
        page = await self.desk.memory.page(ALICE, 100, None, parse_filter({"shelf": {"gt": 48}}))
        assert len(page.facts) == 100


WORKS: dict[str, Callable[[Load], Awaitable[None]]] = {
    "add": Load.add,
    "delete": Load.delete,
    "export": Load.export,
    "search": Load.search,
    "list": Load.list,
}


@pytest.fixture
async def load(tmp_path: Path) -> AsyncIterator[Load]:
    async with open_desk(tmp_path, ROWS) as desk:
        doomed = await desk.add(BOB, [f"bob met cat {number}" for number in range(DELETED)])
        await desk.encoded()
        drafts = [FactDraft(f"book {number} is good", metadata={"shelf": number % 50}) for number in range(STORED)]
        await desk.memory.add(ALICE, drafts)
        yield Load(desk, doomed)


@pytest.fixture
def ticker() -> Iterator[Ticker]:
    ticker = Ticker()
    yield ticker
    print(f"longest gap {ticker.longest_s * 1e3:.0f} ms over {ticker.ticks} ticks")


@pytest.mark.parametrize("work", WORKS)
async def test_the_event_loop_stays_free_while_much_is_done(load: Load, ticker: Ticker, work: str) -> None:
    async with ticker.running():
        await WORKS[work](load)
    assert ticker.ticks > 0 and ticker.longest_s < LONGEST_GAP_S


async def test_the_event_loop_stays_free_while_all_of_it_is_done_at_once(load: Load, ticker: Ticker) -> None:
    async with ticker.running():
        await asyncio.gather(*(work(load) for work in WORKS.values()))
    assert ticker.ticks > 0 and ticker.longest_s < LONGEST_GAP_S
