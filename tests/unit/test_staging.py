"""Staging: cold facts come up before the chat is submitted, within the deadline, and best first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.catalog import ChunkKey
from inferscale_server.staging import Stager, Wanted
from inferscale_server.tiers import HostTier
from inferscale_server.types import Fact

from .builders import ALICE, fact
from .engines import World, world
from .host_engine import HostEngine


@dataclass
class Cold:
    """Encoded facts that lie in colder tiers only."""

    world: World
    engine: HostEngine
    host: HostTier | None
    stager: Stager
    facts: list[Fact]

    @property
    def wanted(self) -> list[Wanted]:
        """All facts, as a chat wants them."""
        return [self.want(each) for each in self.facts]

    def want(self, one: Fact) -> Wanted:
        job = self.world.encoder.job_of(one)
        return Wanted(job.key, job.token_ids)

    async def evict(self) -> None:
        """The facts leave the slab."""
        self.world.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")
        await self.world.encoder.wipe()

    def warm(self) -> list[str]:
        """Facts that lie in the slab."""
        return [one.id for one in self.facts if ChunkKey("fact", ALICE, one.id) in self.world.catalog]

    def tokens_of(self, one: Fact) -> tuple[int, ...]:
        chunk = self.world.chunk(one)
        assert chunk is not None
        return self.engine.tokens_of(chunk)


async def cold(
    folder: Path | None = None,
    facts: int = 3,
    host_rows: int = 0,
    rows: int = 1_000,
    deadline_s: float = 5.0,
    text_s: float | None = None,
    of: Sequence[Fact] = (),
) -> Cold:
    """So many facts encoded, saved to a folder and copied to the host where these are given, and evicted."""
    here = world(rows=rows, folder=folder)
    engine = HostEngine()
    here.encoder._batches._engine = engine
    if here.disk is not None:
        here.disk._engine = engine
    host = HostTier(here.catalog, host_rows, engine) if host_rows else None
    if host is not None:
        here.catalog.on_commit = host.note
    stager = Stager(here.catalog, here.encoder.wipe, host, here.disk, deadline_s, lambda tokens: text_s)
    made = list(of) or [fact(number) for number in range(1, facts + 1)]
    here.add(*made)
    await here.encoder.drain()
    while host is not None and await host.copy_some():
        pass
    all_ = Cold(here, engine, host, stager, made)
    await all_.evict()
    assert all_.warm() == []
    return all_


def damage(folder: Path) -> None:
    """Every file has another end."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"\0\1")


async def test_facts_on_the_disk_are_there_when_the_chat_is_planned(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    came = await all_.stager.stage(all_.wanted)
    assert len(all_.warm()) == 3 and set(came.values()) == {"disk"}
    assert [all_.tokens_of(one) for one in all_.facts] == [one.token_ids for one in all_.wanted]
    assert set(came) == {chunk.stamp for one in all_.facts if (chunk := all_.world.chunk(one))}


async def test_facts_in_host_memory_come_before_any_file_is_read(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, host_rows=200)
    came = await all_.stager.stage(all_.wanted)
    assert set(came.values()) == {"host"} and all_.engine.loads == [] and len(all_.warm()) == 3
    assert [all_.tokens_of(one) for one in all_.facts] == [one.token_ids for one in all_.wanted]


async def test_what_lies_in_the_slab_costs_no_command(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    await all_.stager.stage(all_.wanted)
    loads = list(all_.engine.loads)
    assert await all_.stager.stage(all_.wanted) == {} and all_.engine.loads == loads


async def test_what_lies_nowhere_is_left_to_the_encoder() -> None:
    all_ = await cold()
    assert await all_.stager.stage(all_.wanted) == {} and all_.warm() == []


async def test_a_chat_does_not_wait_past_the_deadline_and_the_next_one_profits(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, deadline_s=0.01)
    all_.engine.gate = asyncio.Event()
    assert await all_.stager.stage(all_.wanted) == {}
    assert all_.stager.results["disk", "late"] == 3
    all_.engine.gate.set()
    await all_.stager.settled()
    assert len(all_.warm()) == 3


async def test_no_more_files_are_read_when_the_deadline_has_passed(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, facts=20, deadline_s=0.01)
    all_.engine.gate, before = asyncio.Event(), len(all_.engine.loads)
    await all_.stager.stage(all_.wanted)
    all_.engine.gate.set()
    await all_.stager.settled()
    assert len(all_.engine.loads) == before + 1 and 0 < len(all_.warm()) < 20


async def test_the_best_facts_come_first(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, facts=20, deadline_s=0.01)
    all_.engine.gate = asyncio.Event()
    await all_.stager.stage(list(reversed(all_.wanted)))
    all_.engine.gate.set()
    await all_.stager.settled()
    assert all_.warm() == [one.id for one in all_.facts[-len(all_.warm()) :]]


async def test_a_deadline_of_nothing_stages_nothing(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, deadline_s=0.0)
    assert await all_.stager.stage(all_.wanted) == {} and all_.warm() == []


async def test_the_deadline_is_a_share_of_what_text_would_take(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, deadline_s=60.0, text_s=0.01)
    all_.engine.gate = asyncio.Event()
    async with asyncio.timeout(10):
        assert await all_.stager.stage(all_.wanted) == {}
    all_.engine.gate.set()
    await all_.stager.settled()


async def test_a_fact_forgotten_while_it_comes_is_not_served(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    all_.engine.gate = asyncio.Event()
    staging = asyncio.create_task(all_.stager.stage(all_.wanted))
    await all_.engine.reached.wait()
    gone = all_.facts[2]
    all_.world.delete(gone)
    all_.stager.forget_facts(ALICE, [gone.id])
    all_.engine.gate.set()
    await staging
    assert gone.id not in all_.warm()
    await all_.world.encoder.wipe()
    held = sum(len(chunk.token_ids) for chunk in all_.world.catalog.of(ALICE))
    assert all_.world.catalog.rows_used - held == len(all_.world.encoder._header.token_ids)


async def test_a_forgotten_owners_facts_are_not_served(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    all_.engine.gate = asyncio.Event()
    staging = asyncio.create_task(all_.stager.stage(all_.wanted))
    await all_.engine.reached.wait()
    all_.world.delete_owner(ALICE)
    all_.stager.forget_owner(ALICE)
    all_.engine.gate.set()
    assert await staging == {} and all_.world.catalog.of(ALICE) == ()


async def test_what_the_same_chat_uses_does_not_make_room_for_the_rest_of_it(tmp_path: Path) -> None:
    texts = [fact(number, f"one two three {number}") for number in range(1, 5)]
    all_ = await cold(tmp_path, of=texts)
    first = all_.want(texts[0])
    await all_.stager.stage([first])
    free = all_.world.catalog.rows - all_.world.catalog.rows_used
    filler = all_.world.catalog.reserve(ChunkKey("context", ALICE, "filler"), tuple(range(free)), frozenset())
    assert filler is not None
    all_.world.catalog.commit(filler)
    all_.world.catalog.get(filler.key)
    await all_.stager.stage(all_.wanted)
    assert first.key in all_.world.catalog and len(all_.warm()) == 4 and filler.key not in all_.world.catalog


async def test_a_file_that_does_not_check_out_leaves_the_fact_as_text_and_leaks_no_row(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    damage(tmp_path)
    before = all_.world.catalog.rows_used
    assert await all_.stager.stage(all_.wanted) == {} and all_.warm() == []
    await all_.world.encoder.wipe()
    assert all_.world.catalog.rows_used == before and all_.stager.results["disk", "failed"] == 3


async def test_files_of_another_wording_are_not_staged(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    other = [Wanted(one.key, (*one.token_ids, 1)) for one in all_.wanted]
    assert await all_.stager.stage(other) == {} and all_.engine.loads == []


async def test_closing_gives_up_what_is_under_way_and_leaks_no_row(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, deadline_s=0.01)
    all_.engine.gate, before = asyncio.Event(), all_.world.catalog.rows_used
    await all_.stager.stage(all_.wanted)
    await all_.stager.aclose()
    await all_.world.encoder.wipe()
    assert all_.world.catalog.rows_used == before and all_.warm() == [] and not all_.stager._in_flight
