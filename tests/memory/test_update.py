"""Changing a fact: what changes, what stays, what hears of it, and what a fact's history says."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.errors import Conflict, InvalidRequest, NotFound, StorageFull, TooLarge, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.limits import MAX_METADATA_BYTES, MAX_UPDATES_KEPT
from inferscale_server.memory import MemoryService
from inferscale_server.remember import parse_change
from inferscale_server.types import UNSET, Fact, FactChange, FactDraft, FactEvent, Owner
from tests.memory.fakes import Clock, FailsAfterCommit, FakeEmbedder, RecordingSink, started

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")


async def add(memory: MemoryService, text: str, **more: Any) -> str:
    (outcome,) = await memory.add(ALICE, [FactDraft(text, **more)])
    assert outcome.id is not None
    return outcome.id


async def found(memory: MemoryService, query: str, k: int = 10) -> list[str]:
    return [hit.fact.text for hit in await memory.search(ALICE, query, k)]


async def test_a_new_text_is_found_and_the_old_one_is_not(
    memory: MemoryService, clock: Clock, sink: RecordingSink
) -> None:
    first = await add(memory, "I like tea", speaker="alice", occurred_at=5.0, session_id="s1", metadata={"a": 1})
    await add(memory, "my dog is Rex")
    before = await memory.get(ALICE, first)
    clock.now += 60
    changed = await memory.update(ALICE, first, FactChange(text="I like coffee"))
    assert changed == await memory.get(ALICE, first)
    assert (changed.id, changed.seq, changed.created_at) == (before.id, before.seq, before.created_at)
    assert (changed.speaker, changed.occurred_at, changed.session_id) == ("alice", 5.0, "s1")
    assert changed.metadata == {"a": 1}
    assert changed.updated_at == clock.now > before.updated_at
    (hit,) = await memory.search(ALICE, "I like coffee", 1)
    assert hit.fact == changed and hit.score == pytest.approx(1.0)
    assert [fact.text for fact in (await memory.page(ALICE)).facts] == ["I like coffee", "my dog is Rex"]
    assert memory.epoch(ALICE) == 1
    assert sink.heard[-2:] == [("forgotten", ALICE, (first,)), ("added", ALICE, (first,))]


async def test_metadata_is_merged_and_leaves_kv_and_embedding_alone(path: Path, sink: RecordingSink) -> None:
    embedder = FakeEmbedder()
    memory = await started(FactStore(path), embedder, sink)
    fact_id = await add(memory, "I like tea", metadata={"keep": 1, "change": 2, "remove": 3})
    calls, heard = list(embedder.calls), list(sink.heard)
    changed = await memory.update(ALICE, fact_id, FactChange(metadata={"change": 4, "remove": None, "new": [None]}))
    assert changed.metadata == {"keep": 1, "change": 4, "new": [None]}
    assert (await memory.page(ALICE)).facts == (changed,)
    assert (embedder.calls, sink.heard, memory.epoch(ALICE)) == (calls, heard, 0)
    await memory.aclose()


async def test_a_new_time_reads_differently_in_a_prompt_so_its_kv_is_dropped(
    memory: MemoryService, sink: RecordingSink
) -> None:
    fact_id = await add(memory, "I like tea", occurred_at=5.0)
    assert (await memory.update(ALICE, fact_id, FactChange(occurred_at=None))).occurred_at is None
    assert [heard[0] for heard in sink.heard] == ["added", "forgotten", "added"]
    assert memory.epoch(ALICE) == 1


async def test_an_updated_fact_is_the_same_after_a_restart(memory: MemoryService, path: Path, clock: Clock) -> None:
    fact_id = await add(memory, "I like tea")
    await add(memory, "my dog is Rex")
    changed = await memory.update(ALICE, fact_id, FactChange("I like coffee", {"a": 1}, expires_at=clock.now + 60))
    before = await memory.search(ALICE, "I like coffee", 2)
    await memory.aclose()
    again = await started(FactStore(path, clock=clock))
    assert await again.get(ALICE, fact_id) == changed
    assert await again.search(ALICE, "I like coffee", 2) == before
    assert again.epoch(ALICE) == 1
    await again.aclose()


async def test_others_and_deleted_facts_cannot_be_changed(memory: MemoryService) -> None:
    fact_id = await add(memory, "I like tea")
    with pytest.raises(NotFound):
        await memory.update(BOB, fact_id, FactChange("mine now"))
    await memory.delete(ALICE, fact_id)
    with pytest.raises(NotFound):
        await memory.update(ALICE, fact_id, FactChange("back again"))
    assert (await memory.page(ALICE)).facts == (await memory.page(BOB)).facts == ()


async def test_a_text_that_another_fact_has_is_a_conflict_and_its_own_is_not(memory: MemoryService) -> None:
    first, _ = await add(memory, "caf\u00e9"), await add(memory, "tea")
    with pytest.raises(Conflict) as caught:
        await memory.update(ALICE, first, FactChange("tea"))
    assert (caught.value.status, caught.value.code) == (409, "duplicate_fact")
    assert (await memory.get(ALICE, first)).text == "caf\u00e9"
    assert (await memory.update(ALICE, first, FactChange("cafe\u0301"))).text == "cafe\u0301"
    await memory.update(ALICE, first, FactChange("milk"))
    assert (await memory.add(ALICE, [FactDraft("caf\u00e9")]))[0].status == "stored"


async def test_metadata_that_grows_too_large_over_several_updates_is_refused(memory: MemoryService) -> None:
    half = "x" * (MAX_METADATA_BYTES // 2)
    fact_id = await add(memory, "tea", metadata={"a": half})
    with pytest.raises(TooLarge):
        await memory.update(ALICE, fact_id, FactChange(metadata={"b": half}))
    assert (await memory.get(ALICE, fact_id)).metadata == {"a": half}
    await memory.update(ALICE, fact_id, FactChange(metadata={"a": None, "b": half}))


async def test_twenty_updates_at_once_all_count_and_the_last_wins(memory: MemoryService) -> None:
    fact_id = await add(memory, "number -1")
    await asyncio.gather(*(memory.update(ALICE, fact_id, FactChange(f"number {i}")) for i in range(20)))
    assert (await memory.get(ALICE, fact_id)).text == "number 19"
    assert await found(memory, "number") == ["number 19"]
    events = await memory.history(ALICE, fact_id)
    assert [event.text for event in events] == [f"number {i}" for i in range(-1, 20)]
    assert {event.event for event in events[1:]} == {"updated"}


async def test_an_update_that_meets_a_delete_leaves_no_trace_of_either_text(
    memory: MemoryService, sink: RecordingSink
) -> None:
    for i in range(10):
        fact_id = await add(memory, f"fact {i}")
        await asyncio.gather(
            memory.update(ALICE, fact_id, FactChange(f"new {i}")),
            memory.delete(ALICE, fact_id),
            return_exceptions=True,
        )
        assert memory.facts(ALICE) == () and memory.index_bytes(ALICE) == 0
        assert sink.heard[-1] == ("forgotten", ALICE, (fact_id,))


async def test_S10_a_fact_deleted_before_it_was_announced_is_never_announced(
    memory: MemoryService, sink: RecordingSink
) -> None:
    gone, kept = await add(memory, "gone"), await add(memory, "kept")
    late = memory.facts(ALICE)
    await memory.delete(ALICE, gone)
    heard = len(sink.heard)
    await memory._tell(ALICE, (), late)
    assert sink.heard[heard:] == [("added", ALICE, (kept,))]


async def test_a_change_reported_as_failed_after_its_commit_is_mended_by_a_retry(path: Path) -> None:
    sink = RecordingSink()
    memory = await started(FactStore(path, connect=partial(sqlite3.connect, factory=FailsAfterCommit)), sink=sink)
    fact_id = await add(memory, "I like tea")
    FailsAfterCommit.armed = True
    with pytest.raises(Unavailable):
        await memory.update(ALICE, fact_id, FactChange("I like coffee"))
    await memory.update(ALICE, fact_id, FactChange("I like coffee"))
    assert (await memory.search(ALICE, "I like coffee", 1))[0].score == pytest.approx(1.0)
    assert [heard[0] for heard in sink.heard] == ["added", "forgotten", "added"]
    await memory.aclose()


async def test_an_update_over_the_quota_changes_nothing(path: Path) -> None:
    memory = await started(FactStore(path, max_bytes_per_owner=100))
    fact_id = await add(memory, "x" * 90)
    with pytest.raises(StorageFull):
        await memory.update(ALICE, fact_id, FactChange("y" * 120))
    assert (await memory.get(ALICE, fact_id)).text == "x" * 90 and await found(memory, "x" * 90) == ["x" * 90]
    await memory.update(ALICE, fact_id, FactChange("z" * 95))
    await memory.aclose()


async def test_history_tells_what_a_fact_said_and_when(memory: MemoryService, clock: Clock) -> None:
    fact_id, added = await add(memory, "I like tea", metadata={"a": 1}), clock.now
    assert await memory.history(ALICE, fact_id) == (FactEvent("added", added, "I like tea", {"a": 1}),)
    clock.now += 10
    await memory.update(ALICE, fact_id, FactChange("I like coffee"))
    clock.now += 10
    await memory.update(ALICE, fact_id, FactChange(metadata={"b": 2}))
    assert await memory.history(ALICE, fact_id) == (
        FactEvent("added", added, "I like tea", {"a": 1}),
        FactEvent("updated", added + 10, "I like coffee", {"a": 1}),
        FactEvent("updated", added + 20, "I like coffee", {"a": 1, "b": 2}),
    )


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("whole_owner", [False, True])
async def test_history_of_a_deleted_fact_says_that_it_existed_never_what_it_said(
    memory: MemoryService, clock: Clock, path: Path, changed: bool, whole_owner: bool
) -> None:
    fact_id, added = await add(memory, "my code is 1234", metadata={"pin": 1234}), clock.now
    if changed:
        await memory.update(ALICE, fact_id, FactChange("my code is 5678"))
    clock.now += 10
    await (memory.delete_owner(ALICE) if whole_owner else memory.delete(ALICE, fact_id))
    gone = [FactEvent("added", added, None, None), FactEvent("deleted", clock.now, None, None)]
    expected = [gone[0], FactEvent("updated", added, None, None), gone[1]] if changed else gone
    assert list(await memory.history(ALICE, fact_id)) == expected
    await memory.aclose()
    store = FactStore(path)
    store.compact()
    store.close()
    bytes_left = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"1234" not in bytes_left and b"5678" not in bytes_left and b"alice" not in bytes_left


async def test_history_of_others_and_unknown_facts_is_not_found(memory: MemoryService) -> None:
    fact_id = await add(memory, "I like tea")
    await memory.update(ALICE, fact_id, FactChange("I like coffee"))
    for owner, wanted in ((BOB, fact_id), (ALICE, "0" * 32)):
        with pytest.raises(NotFound):
            await memory.history(owner, wanted)


async def test_history_keeps_the_first_event_and_a_bounded_number_of_updates(memory: MemoryService) -> None:
    fact_id = await add(memory, "number")
    for i in range(MAX_UPDATES_KEPT + 5):
        await memory.update(ALICE, fact_id, FactChange(metadata={"n": i}))
    events = await memory.history(ALICE, fact_id)
    assert [event.event for event in events] == ["added"] + ["updated"] * MAX_UPDATES_KEPT
    assert events[-1].metadata == {"n": MAX_UPDATES_KEPT + 4}


async def test_old_tombstones_can_be_dropped_and_living_facts_keep_their_history(
    memory: MemoryService, clock: Clock, path: Path
) -> None:
    gone, kept = await add(memory, "gone"), await add(memory, "kept")
    await memory.update(ALICE, kept, FactChange("changed"))
    await memory.delete(ALICE, gone)
    clock.now += 100
    late = await add(memory, "late")
    await memory.delete(ALICE, late)
    await memory.aclose()
    store = FactStore(path)
    assert store.drop_tombstones(clock.now - 50) == 1
    assert store.history(ALICE, gone) == ()
    assert len(store.history(ALICE, kept)) == 2 and len(store.history(ALICE, late)) == 2
    store.close()


def test_a_written_change_names_what_it_changes_and_nothing_else() -> None:
    assert parse_change({"text": " I like coffee "}) == FactChange("I like coffee")
    assert parse_change({"metadata": {"a": None}}) == FactChange(metadata={"a": None})
    assert parse_change({"expires_at": None, "timestamp": 5}) == FactChange(expires_at=None, occurred_at=5.0)
    assert FactChange().expires_at is UNSET


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": None}, "text"),
        ({"text": "a\ud800b"}, "text"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": float("nan")}}, "metadata"),
        ({"expires_at": "soon"}, "expires_at"),
        ({"timestamp": True}, "timestamp"),
        ({"role": "user"}, "role"),
        ({}, None),
    ],
)
def test_a_change_that_cannot_be_is_refused_by_name(body: dict[str, object], param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_change(body)
    assert caught.value.param == param


def test_a_fact_expires_at_its_moment_not_after_it() -> None:
    fact = Fact("f1", ALICE, 1, "x", None, None, None, {}, 0.0, expires_at=10.0)
    assert not fact.expired(9.999) and fact.expired(10.0)
