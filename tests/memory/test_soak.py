"""R7: hours of adding, asking, changing and deleting, in short: nothing grows, and everything is given back."""

from __future__ import annotations

import gc
import os
import random
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inferscale_server.types import FactChange, Owner
from tests.memory.desk import Desk, open_desk

SEED = 20260801
ROWS = 400
"""So few that encoding has to evict."""
OWNERS, FACTS_AT_ONCE, WORDS = 12, 8, 300
WARM_UP = 40
MOST_GROWTH_BYTES = 1 << 19
"""Over all rounds after the warm-up: in the long run a leak of a hundred bytes a round is above it."""


@dataclass(frozen=True)
class Held:
    """What a process holds: bytes that Python allocated, open files, threads."""

    bytes: int
    files: int
    threads: int


def held() -> Held:
    gc.collect()
    # The event loop's own pool starts its few threads one by one, whenever none of them is free.
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    return Held(tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd")), len(threads))


@dataclass
class Soak:
    """Rounds of whatever users do, on owners who come and go; the same for every run."""

    desk: Desk
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    facts: dict[Owner, list[str]] = field(default_factory=dict)
    number: int = 0
    planned: int = 0
    by_kv: int = 0

    async def rounds(self, count: int) -> None:
        steps: list[Callable[[Owner], Awaitable[None]]] = [self.add, self.search, self.plan, self.update, self.delete]
        for _ in range(count):
            self.number += 1
            owner = Owner("local", f"user-{self.number // 30 % 4}-{self.chance.randrange(OWNERS)}")
            for step in steps:
                await step(owner)
            if len(self.facts) > OWNERS:
                await self.delete_owner(next(iter(self.facts)))

    def words(self) -> str:
        """Two of a few hundred words: the test's own tokenizer keeps each that it has seen."""
        return f"{self.chance.randrange(WORDS)} {self.chance.randrange(WORDS)}"

    async def add(self, owner: Owner) -> None:
        ids = await self.desk.add(owner, [f"{owner.user} {verb} {self.words()}" for verb in ("owns car", "likes tea")])
        of_owner = self.facts.setdefault(owner, [])
        of_owner.extend(fact_id for fact_id in ids if fact_id not in of_owner)

    async def search(self, owner: Owner) -> None:
        assert await self.desk.memory.search(owner, f"which car {self.number % 40}", 3)

    async def plan(self, owner: Owner) -> None:
        """As a chat does: what it will inject stays as long as it runs, also when its facts are deleted meanwhile."""
        if self.chance.random() < 0.5:
            await self.desk.encoded()
        plan, pin = await self.desk.plan(owner, f"which tea {self.number % 40}")
        assert plan.lines and {line.name for line in plan.lines} <= set(self.facts[owner])
        self.planned += 1
        self.by_kv += plan.mode == "kv"
        try:
            await self.delete(owner)
        finally:
            pin.release()

    async def update(self, owner: Owner) -> None:
        change = FactChange(f"{owner.user} has sold {self.words()} {self.words()}")
        await self.desk.memory.update(owner, self.chance.choice(self.facts[owner]), change)

    async def delete(self, owner: Owner) -> None:
        ids = self.facts[owner]
        while len(ids) > FACTS_AT_ONCE:
            await self.desk.memory.delete(owner, ids.pop(self.chance.randrange(len(ids))))

    async def delete_owner(self, owner: Owner) -> None:
        assert await self.desk.memory.delete_owner(owner) == len(self.facts.pop(owner))

    async def delete_all(self) -> None:
        for owner in list(self.facts):
            await self.delete_owner(owner)


@pytest.mark.parametrize("rounds", [100, pytest.param(5_000, marks=pytest.mark.long)])
async def test_R7_nothing_grows_over_many_rounds_and_everything_is_given_back(tmp_path: Path, rounds: int) -> None:
    tracemalloc.start()
    try:
        async with open_desk(tmp_path, ROWS) as desk:
            await desk.encoded()
            soak, empty = Soak(desk), desk.catalog.rows_used
            await soak.rounds(WARM_UP)
            await soak.delete_all()
            await desk.encoded()
            before = held()
            await soak.rounds(rounds)
            assert desk.catalog.rows_used > empty and soak.by_kv > soak.planned / 4
            await soak.delete_all()
            await desk.encoded()
            after = held()
            assert (desk.catalog.rows_used, desk.catalog.pins) == (empty, 0)
            assert desk.memory.owners() == ()
    finally:
        tracemalloc.stop()
    growth = after.bytes - before.bytes
    print(f"{rounds} rounds, {soak.by_kv} of {soak.planned} plans by KV: {growth / 1024:.0f} KiB more")
    assert growth < MOST_GROWTH_BYTES
    assert (after.files, after.threads) == (before.files, before.threads)
