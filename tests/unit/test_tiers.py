"""The host tier: what was evicted comes back from host memory, and what was forgotten does not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from inferscale_server.catalog import Catalog, Chunk
from inferscale_server.command import Extent, rows_of
from inferscale_server.row_copy import RowCopy, copy_from_wire
from inferscale_server.tiers import COPIES, HostTier

from .builders import ALICE, BOB, store
from .host_engine import HostEngine


@dataclass
class Tiers:
    """A device catalog, a host tier behind it, and an engine that has both memories."""

    device: Catalog
    host: HostTier
    engine: HostEngine

    def encode(self, name: str, tokens: int | Sequence[int] = 3, **more: object) -> Chunk:
        """A chunk that is encoded: its rows bear its stamp."""
        chunk = store(self.device, name, tokens, **more)  # type: ignore[arg-type]
        for row, token in zip(rows_of(chunk.extents), chunk.token_ids, strict=True):
            self.engine.rows[row] = (chunk.stamp, token)
        return chunk

    async def evict(self, chunk: Chunk) -> None:
        """The chunk leaves the device, and its rows are wiped."""
        self.device.drop(chunk.key)
        await self.engine.wipe(self.device.unwiped)
        self.device.wiped(self.device.unwiped)

    async def settle(self) -> None:
        """All copies and wipes that wait are done."""
        while await self.host.copy_some():
            pass
        await self.host.wipe()

    async def bring_back(self, chunk: Chunk) -> Chunk | None:
        """The chunk on the device again, from its copy."""
        held = self.host.find(chunk.key, chunk.token_ids)
        if held is None:
            return None
        again = self.device.reserve(chunk.key, chunk.token_ids, held.behind)
        assert again is not None
        (done,) = await self.host.promote([(held, again)])
        return again if done else None


def tiers(device_rows: int = 100, host_rows: int = 100) -> Tiers:
    device, engine = Catalog(device_rows, "f"), HostEngine()
    host = HostTier(device, host_rows, engine)
    device.on_commit = host.note
    return Tiers(device, host, engine)


async def test_what_was_evicted_comes_back_without_encoding() -> None:
    all_ = tiers()
    chunk = all_.encode("a", (5, 6, 7))
    await all_.settle()
    await all_.evict(chunk)
    again = await all_.bring_back(chunk)
    assert again is not None and all_.engine.tokens_of(again) == (5, 6, 7) and again.stamp != chunk.stamp
    assert not all_.engine.requests


async def test_a_tier_smaller_than_one_command_holds_what_came_last() -> None:
    all_ = tiers(host_rows=10)
    chunks = [all_.encode(str(number)) for number in range(COPIES)]
    large = all_.encode("large", 11)
    await all_.settle()
    assert [chunk.key for chunk in chunks if chunk.key in all_.host.catalog] == [chunk.key for chunk in chunks[-3:]]
    assert large.key not in all_.host.catalog and all_.host.results == {"copied": COPIES, "no_room": 1}


async def test_what_is_being_brought_up_makes_no_room_and_the_rest_still_does() -> None:
    all_ = tiers(host_rows=9)
    for name in "abc":
        all_.encode(name)
    await all_.settle()
    held = all_.host.catalog.of(ALICE)[0]
    for name in "def":
        all_.encode(name)
    with all_.host.catalog.pinned([held]):
        await all_.settle()
    assert {chunk.key.name for chunk in all_.host.catalog.of(ALICE)} == {"a", "d", "e"}


async def test_other_tokens_under_the_same_name_are_not_found() -> None:
    all_ = tiers()
    chunk = all_.encode("a", (5, 6, 7))
    await all_.settle()
    assert all_.host.find(chunk.key, (5, 6, 8)) is None


async def test_copies_go_in_small_commands() -> None:
    all_ = tiers()
    for number in range(COPIES + 1):
        all_.encode(str(number))
    await all_.settle()
    assert all_.engine.copies == [("to_host", COPIES), ("to_host", 1)] and all_.host.waiting == 0


async def test_a_chunk_that_came_from_the_host_is_not_copied_back() -> None:
    all_ = tiers()
    chunk = all_.encode("a")
    await all_.settle()
    await all_.evict(chunk)
    again = await all_.bring_back(chunk)
    assert again is not None
    all_.device.commit(again)
    await all_.settle()
    assert all_.engine.copies == [("to_host", 1), ("to_device", 1)]


async def test_a_new_encoding_replaces_the_copy() -> None:
    all_ = tiers()
    old = all_.encode("a", (1, 2))
    await all_.settle()
    all_.encode("a", (3, 4))
    await all_.settle()
    assert all_.host.find(old.key, (1, 2)) is None and all_.host.find(old.key, (3, 4)) is not None
    assert all_.host.catalog.rows_used == 2


async def test_the_copy_used_longest_ago_makes_room() -> None:
    all_ = tiers(host_rows=6)
    a, b = all_.encode("a"), all_.encode("b")
    await all_.settle()
    all_.host.find(a.key, a.token_ids)
    c = all_.encode("c")
    await all_.settle()
    assert [all_.host.find(chunk.key, chunk.token_ids) is not None for chunk in (a, b, c)] == [True, False, True]


async def test_a_chunk_larger_than_the_host_is_left_out() -> None:
    all_ = tiers(host_rows=6)
    all_.encode("large", 7)
    await all_.settle()
    assert all_.host.results["no_room"] == 1 and all_.host.catalog.rows_used == 0


@pytest.mark.parametrize("how", ["waiting", "copied", "under way"])
async def test_a_forgotten_fact_does_not_come_back(how: str) -> None:
    all_ = tiers()
    chunk = all_.encode("a")

    def forget() -> None:
        all_.device.drop(chunk.key)
        all_.host.forget_facts(ALICE, ["a"])

    if how == "waiting":
        forget()
    elif how == "under way":
        all_.engine.during_copy = forget
    await all_.settle()
    if how == "copied":
        assert all_.host.find(chunk.key, chunk.token_ids) is not None
        forget()
        await all_.settle()
    assert all_.host.find(chunk.key, chunk.token_ids) is None
    assert all_.host.catalog.rows_used == 0 and all_.engine.host == {}


async def test_a_copy_under_way_of_another_fact_of_the_same_user_comes_all_the_same() -> None:
    all_ = tiers()
    stays, goes = all_.encode("a"), all_.encode("b", behind=("gone",))
    all_.engine.during_copy = lambda: all_.host.forget_facts(ALICE, ["gone"])
    await all_.settle()
    assert all_.host.find(stays.key, stays.token_ids) is not None
    assert all_.host.find(goes.key, goes.token_ids) is None and all_.host.catalog.rows_used == 3


async def test_what_was_encoded_behind_a_forgotten_fact_goes_with_it() -> None:
    all_ = tiers()
    behind, apart = all_.encode("a", behind=frozenset({"gone"})), all_.encode("b")
    await all_.settle()
    all_.host.forget_facts(ALICE, ["gone"])
    assert all_.host.find(behind.key, behind.token_ids) is None
    assert all_.host.find(apart.key, apart.token_ids) is not None


async def test_forgetting_an_owner_leaves_the_others() -> None:
    all_ = tiers()
    mine, bobs = all_.encode("a"), all_.encode("a", owner=BOB)
    await all_.settle()
    all_.host.forget_owner(ALICE)
    await all_.settle()
    assert all_.host.find(mine.key, mine.token_ids) is None
    assert all_.host.find(bobs.key, bobs.token_ids) is not None and len(all_.engine.host) == 3


async def test_rows_that_hold_another_encoding_by_now_are_not_copied() -> None:
    all_ = tiers()
    chunk = all_.encode("a")
    for row in rows_of(chunk.extents):
        all_.engine.rows[row] = (chunk.stamp + 1, 9)
    await all_.settle()
    assert all_.host.find(chunk.key, chunk.token_ids) is None and all_.host.catalog.rows_used == 0


async def test_a_chunk_that_left_the_device_before_its_turn_is_not_copied() -> None:
    all_ = tiers()
    chunk = all_.encode("a")
    await all_.evict(chunk)
    await all_.settle()
    assert all_.engine.copies == [] and all_.host.waiting == 0


async def test_a_fault_of_the_engine_leaks_no_row() -> None:
    all_ = tiers()
    all_.encode("a")

    def fail() -> None:
        raise RuntimeError("the engine is gone")

    all_.engine.during_copy = fail
    with pytest.raises(RuntimeError):
        await all_.host.copy_some()
    await all_.host.wipe()
    assert all_.host.catalog.rows_used == 0 and all_.device.pins == 0


async def test_after_a_wipe_that_failed_the_forgotten_kv_leaves_the_host_though_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("inferscale_server.woken.PAUSE_S", 0.0)
    all_ = tiers()
    all_.encode("a")
    await all_.settle()
    real, wiped = all_.engine.wipe_host, asyncio.Event()

    async def second(extents: Sequence[Extent]) -> None:
        await real(extents)
        wiped.set()

    async def first(extents: Sequence[Extent]) -> None:
        all_.engine.wipe_host = second  # type: ignore[method-assign]
        raise RuntimeError("one command failed")

    all_.engine.wipe_host = first  # type: ignore[method-assign]
    background = asyncio.create_task(all_.host.run())
    all_.host.forget_owner(ALICE)
    async with asyncio.timeout(10):
        await wiped.wait()
    background.cancel()
    assert all_.engine.host == {}


def test_a_copy_survives_the_wire() -> None:
    all_ = tiers()
    chunk, other = all_.encode("a"), all_.encode("b")
    copy = RowCopy(chunk.extents, chunk.stamp, other.extents, 7)
    assert copy_from_wire(copy.to_wire()) == copy
    with pytest.raises((TypeError, ValueError)):
        copy_from_wire([1, 2])
