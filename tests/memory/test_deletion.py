"""Deletion: complete to the last byte, and quick; and many writers who lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.errors import NotFound, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.memory import MemoryService
from inferscale_server.types import FactChange, FactDraft, IdempotencyKey, Owner
from tests.memory.fakes import Clock, started

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")
CANARY = "canary-5b1f"
MANY = 1_000
MOST_SECONDS = 10.0
"""Five times the promise."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


@pytest.fixture
async def memory(path: Path) -> AsyncIterator[MemoryService]:
    service = await started(FactStore(path))
    yield service
    await service.aclose()


def files_with(canary: str, folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*") if file.is_file() and canary.encode() in file.read_bytes()]


async def add_many(memory: MemoryService, owner: Owner, number: int) -> list[str]:
    outcomes = await memory.add(owner, [FactDraft(f"fact number {i}") for i in range(number)])
    return [str(outcome.id) for outcome in outcomes]


@pytest.mark.parametrize("how", ["delete", "delete_owner", "expire", "update"])
async def test_S9_nothing_that_was_forgotten_is_left_in_any_byte_after_gc(path: Path, how: str) -> None:
    clock = Clock()
    memory = await started(FactStore(path, clock=clock))
    draft = FactDraft(f"my code is {CANARY}", CANARY, None, CANARY, {"pin": CANARY}, clock.now + 60)
    (outcome,) = await memory.add(ALICE, [draft], IdempotencyKey("key", "digest"))
    fact_id = str(outcome.id)
    await memory.update(ALICE, fact_id, FactChange(f"my other code is {CANARY}", {"pin": CANARY + "x"}))
    await memory.add(BOB, [FactDraft("stays")])
    assert files_with(CANARY, path.parent)
    if how == "delete":
        await memory.delete(ALICE, fact_id)
    elif how == "delete_owner":
        await memory.delete_owner(ALICE)
    elif how == "expire":
        clock.now += 60
        await memory.maintain()
    else:  # what a fact once said belongs to its history, and goes with the fact
        await memory.update(ALICE, fact_id, FactChange("harmless", {"pin": None}))
        await memory.delete(ALICE, fact_id)
    assert await memory.search(ALICE, CANARY, 5) == () and (await memory.page(ALICE)).facts == ()
    await memory.aclose()
    store = FactStore(path)
    store.compact()
    assert files_with(CANARY, path.parent) == []
    assert files_with("stays", path.parent) == [path.name]
    store.close()
    assert files_with(CANARY, path.parent) == []


async def test_S9_a_deleted_user_leaves_no_name_behind(path: Path) -> None:
    memory = await started(FactStore(path))
    await memory.add(Owner("local", CANARY), [FactDraft("one")], IdempotencyKey("key", "digest"))
    await memory.delete_owner(Owner("local", CANARY))
    await memory.aclose()
    store = FactStore(path)
    store.compact()
    assert files_with(CANARY, path.parent) == []
    store.close()


async def test_deleting_a_user_of_1000_facts_is_quick(memory: MemoryService) -> None:
    await add_many(memory, ALICE, MANY)
    began = time.perf_counter()
    assert await memory.delete_owner(ALICE) == MANY
    took = time.perf_counter() - began
    print(f"delete of a user with {MANY} facts: {took:.3f} s")
    assert took < MOST_SECONDS and memory.owners() == ()


async def test_1000_single_deletes_are_quick(memory: MemoryService) -> None:
    ids = await add_many(memory, ALICE, MANY)
    began = time.perf_counter()
    await asyncio.gather(*(memory.delete(ALICE, fact_id) for fact_id in ids))
    took = time.perf_counter() - began
    print(f"{MANY} deletes of one fact each: {took:.3f} s")
    assert took < MOST_SECONDS and memory.owners() == () and memory.epoch(ALICE) >= 1


async def test_deletes_that_share_a_commit_are_answered_each_for_itself(memory: MemoryService) -> None:
    one, two, three = await add_many(memory, ALICE, 3)
    asked = [(ALICE, one), (BOB, two), (ALICE, one), (ALICE, "0" * 32), (ALICE, three)]
    answers = await asyncio.gather(*(memory.delete(*what) for what in asked), return_exceptions=True)
    assert [type(answer) for answer in answers] == [type(None), NotFound, NotFound, NotFound, type(None)]
    assert [fact.id for fact in memory.facts(ALICE)] == [two]


async def test_deletes_that_share_a_failed_commit_all_hear_of_it_and_can_be_tried_again(path: Path) -> None:
    class Fails(FactStore):
        failing = True

        def delete_many(self, *args: Any) -> dict[Owner, frozenset[str]]:
            if self.failing:
                raise Unavailable("the fact store cannot be used now")
            return super().delete_many(*args)

    store = Fails(path)
    memory = await started(store)
    ids = await add_many(memory, ALICE, 5)
    answers = await asyncio.gather(*(memory.delete(ALICE, one) for one in ids), return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable} and memory.count(ALICE) == 5
    store.failing = False
    await asyncio.gather(*(memory.delete(ALICE, one) for one in ids))
    assert memory.owners() == ()
    await memory.aclose()


async def test_two_writers_of_200_facts_each_lose_none(memory: MemoryService, path: Path) -> None:
    async def write(name: str) -> None:
        for i in range(200):
            (outcome,) = await memory.add(ALICE, [FactDraft(f"{name} {i}")])
            assert outcome.status == "stored"

    await asyncio.gather(write("left"), write("right"))
    expected = [f"{name} {i}" for name in ("left", "right") for i in range(200)]
    assert sorted(fact.text for fact in memory.facts(ALICE)) == sorted(expected)
    await memory.aclose()
    store = FactStore(path)
    assert sorted(fact.text for fact in store.oldest(ALICE, 1_000)) == sorted(expected)
    store.close()


async def test_the_same_text_added_twice_at_once_is_stored_once(memory: MemoryService) -> None:
    draft = [FactDraft("I am allergic to peanuts")]
    (one,), (two,) = await asyncio.gather(memory.add(ALICE, draft), memory.add(ALICE, draft))
    assert sorted([one.status, two.status]) == ["duplicate", "stored"] and one.id == two.id
    assert len(await memory.search(ALICE, "peanuts", 5)) == 1


async def test_searches_adds_updates_and_deletes_at_once_all_succeed_and_agree(memory: MemoryService) -> None:
    ids = await add_many(memory, ALICE, 60)
    await asyncio.gather(
        *(memory.search(ALICE, f"fact number {i}", 5) for i in range(20)),
        *(memory.add(ALICE, [FactDraft(f"new {i}")]) for i in range(20)),
        *(memory.update(ALICE, fact_id, FactChange(f"changed {fact_id}")) for fact_id in ids[:20]),
        *(memory.delete(ALICE, fact_id) for fact_id in ids[20:40]),
        *(memory.page(ALICE, 7) for _ in range(20)),
    )
    texts = {fact.text for fact in memory.facts(ALICE)}
    assert len(texts) == 60 and texts == {fact.text async for fact in memory.export(ALICE)}
    assert {hit.fact.text for hit in await memory.search(ALICE, "new", 100)} == texts
