"""The encoder when the slab is small, full, or held: who is encoded, who is evicted, what is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from inferscale_server.catalog import ChunkKey
from inferscale_server.command import Extent
from inferscale_server.encode import BATCH, MAX_LOOSE
from inferscale_server.job import Job
from inferscale_server.recipe import RecipeSizes, make_recipe
from inferscale_server.types import Owner

from .builders import ALICE, BOB, fact
from .engines import HEADER, HEADER_IDS, ISOLATED, world


def facts(count: int, owner=ALICE):  # type: ignore[no-untyped-def]
    return [fact(number, owner=owner) for number in range(count)]


def context(name: str, *token_ids: int, owner=ALICE) -> Job:  # type: ignore[no-untyped-def]
    return Job(ChunkKey("context", owner, name), token_ids)


@pytest.mark.parametrize("rows", [1, 3, 4, 6, 12, 15, 18, 21, 30, 45])
async def test_a_slab_too_small_for_all_ends_with_what_fits(rows: int) -> None:
    here = world(rows=rows)
    here.add(*facts(8))
    await asyncio.wait_for(here.encoder.drain(), 5)
    here.encoder.want(ALICE, [here.encoder.job_of(each) for each in facts(8)])
    await asyncio.wait_for(here.encoder.drain(), 5)
    assert here.catalog.rows_used <= rows and here.encoder.running() == 0


async def test_background_encoding_evicts_nobody_and_a_chats_wish_does() -> None:
    here = world(rows=4 + 9, recipe=ISOLATED)
    everything = facts(3)
    here.add(*everything)
    await here.encoder.drain()
    kept = [each for each in everything if here.chunk(each) is not None]
    (left,) = [each for each in everything if each not in kept]
    assert len(kept) == 2
    here.encoder.want(ALICE, [here.encoder.job_of(left)])
    await here.encoder.drain()
    assert here.chunk(left) is not None and here.chunk(kept[1]) is not None and here.chunk(kept[0]) is None


async def test_a_fact_too_long_for_the_model_is_left_as_text() -> None:
    here, long = world(max_model_len=40), fact(0, " ".join(f"word{n}" for n in range(60)))
    here.add(long, fact(1))
    await asyncio.wait_for(here.encoder.drain(), 5)
    assert here.chunk(long) is None and here.chunk(fact(1)) is not None
    assert here.encoder.results["failed"] == 1


async def test_a_fact_too_long_for_the_primer_is_encoded_once_and_not_over_and_over() -> None:
    here, long = world(max_model_len=60), fact(0, " ".join(f"word{n}" for n in range(40)))
    here.add(long)
    await asyncio.wait_for(here.encoder.drain(), 5)
    assert here.chunk(long) is not None and len(here.requests_for(long)) == 1


@pytest.mark.parametrize("name", ["primer", "window", "session"])
async def test_a_long_fact_is_encoded_behind_as_much_as_it_leaves_room_for(name: str) -> None:
    here = world(max_model_len=100, recipe=make_recipe(name, RecipeSizes(primer_facts=3, window_turns=3)))
    short = [fact(number, " ".join(f"n{number}w{n}" for n in range(14))) for number in range(3)]
    long = fact(3, " ".join(f"word{n}" for n in range(60)))
    here.add(*short, long)
    await asyncio.wait_for(here.encoder.drain(), 5)
    chunk = here.chunk(long)
    assert chunk is not None and 0 < len(chunk.behind) < 3
    assert all(here.chunk(each) is not None for each in short)


async def test_a_fact_that_is_forgotten_while_its_rows_are_wiped_is_not_encoded() -> None:
    here, (one, two) = world(rows=len(HEADER_IDS) + 4, recipe=ISOLATED), facts(2)
    here.add(one)
    await here.encoder.drain()
    wipe = here.engine.wipe

    async def deletes(extents: Sequence[Extent]) -> None:
        await wipe(extents)
        if two in here.facts[ALICE]:
            here.delete(two)

    here.engine.wipe = deletes  # type: ignore[method-assign]
    here.add(two)
    here.encoder.want(ALICE, [here.encoder.job_of(two)])
    await here.encoder.drain()
    assert here.requests_for(two) == [] and here.chunk(two) is None and here.catalog.unwiped == ()


async def test_what_a_chat_asked_for_comes_first_and_evicts() -> None:
    here, all_facts = world(rows=len(HEADER_IDS) + 4 * BATCH, recipe=ISOLATED), facts(4 * BATCH)
    here.add(*all_facts)
    await here.encoder.drain()
    assert [each for each in all_facts if here.chunk(each)] == all_facts[:BATCH]
    here.encoder.want(ALICE, [here.encoder.job_of(all_facts[-1])])
    await here.encoder.drain()
    assert here.chunk(all_facts[-1]) is not None
    assert sum(here.chunk(each) is not None for each in all_facts) == BATCH


async def test_who_chats_waits_behind_nobody_who_does_not() -> None:
    here, silent = world(recipe=ISOLATED), [Owner("local", f"silent-{number}") for number in range(5)]
    for owner in (*silent, ALICE, BOB):
        here.add(*facts(2 * BATCH, owner))
    for owner in (BOB, ALICE):
        here.encoder.want(owner, [here.encoder.job_of(each) for each in facts(2 * BATCH, owner)])
    await here.encoder.drain()
    owners = {here.encoder.job_of(each).token_ids: each.owner for mine in here.facts.values() for each in mine}
    turns = [owner for owner, _ in groupby(owners[one.own] for one in here.engine.requests if one.own in owners)]
    assert turns[:4] == [BOB, ALICE, BOB, ALICE] and set(turns) == set(here.facts)


async def test_a_full_slab_loses_nothing_to_another_owner() -> None:
    here = world(rows=len(HEADER_IDS) + 3 * 4)  # header, facts of 4 tokens
    here.add(*facts(3))
    await here.encoder.drain()
    held = {chunk.key for chunk in here.catalog.of(ALICE)}
    here.add(*facts(6, BOB))
    await here.encoder.drain()
    assert {chunk.key for chunk in here.catalog.of(ALICE)} == held and len(held) == 3


async def test_headers_that_wait_are_bounded() -> None:
    here = world()
    for number in range(3 * MAX_LOOSE):
        here.encoder.want(ALICE, [context(str(number), number + 1)])
    assert here.encoder.queued() <= MAX_LOOSE


async def test_after_a_wipe_that_failed_the_forgotten_kv_leaves_the_slab_though_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferscale_server.woken.PAUSE_S", 0.0)
    here, (one,) = world(recipe=ISOLATED), facts(1)
    here.add(one)
    await here.encoder.drain()
    real, wiped = here.engine.wipe, asyncio.Event()

    async def second(extents):  # type: ignore[no-untyped-def]
        await real(extents)
        wiped.set()

    async def first(extents):  # type: ignore[no-untyped-def]
        here.engine.wipe = second  # type: ignore[method-assign]
        raise ConnectionError("planted")

    here.engine.wipe = first  # type: ignore[method-assign]
    background = asyncio.create_task(here.encoder.run())
    here.delete(one)
    async with asyncio.timeout(10):
        await wiped.wait()
    background.cancel()
    assert len(here.engine.rows) == len(HEADER_IDS)


@pytest.mark.parametrize("command", ["captured", "wipe", "load"])
async def test_a_header_that_an_engine_fault_left_without_kv_is_encoded_after_all(tmp_path: Path, command: str) -> None:
    if command == "load":
        await world(folder=tmp_path).encoder.drain()  # the header lies on the disk
    here = world(folder=tmp_path)
    real, asked = getattr(here.engine, command), 0

    async def faulty(arguments):  # type: ignore[no-untyped-def]
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("planted")
        return await real(arguments)

    setattr(here.engine, command, faulty)
    if command == "wipe":
        here.encoder.wipe = AsyncMock()  # type: ignore[method-assign]  # what is let go is wiped for the header's rows
        let_go = here.catalog.reserve(ChunkKey("context", ALICE, "old"), (9, 9), ())
        assert let_go is not None
        here.catalog.release(let_go)
    with pytest.raises(ConnectionError):
        await here.encoder.drain()
    assert here.encoder.queued() > 0, "what the fault left is tried again"
    here.add(fact(0))
    await here.encoder.drain()
    assert here.chunk(fact(0)) is not None and here.catalog.rows_used > len(HEADER_IDS)
    assert HEADER.key in here.catalog
