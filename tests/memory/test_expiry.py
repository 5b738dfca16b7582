"""Facts whose time has come: gone for everybody at once, freed by the sweeper."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inferscale_server.errors import InvalidRequest, NotFound, Unavailable
from inferscale_server.facts import EXPIRED_AT_ONCE, FactStore
from inferscale_server.memory import MemoryService
from inferscale_server.remember import DraftDefaults, drafts_from_facts, parse_defaults
from inferscale_server.sweeper import sweep_forever
from inferscale_server.types import FactChange, FactDraft, Owner
from tests.memory.fakes import Clock, RecordingSink, started

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")
FUTURE = 4_102_444_800.0
"""2100-01-01, in Unix seconds."""


async def add(memory: MemoryService, owner: Owner, text: str, expires_at: float | None = None) -> str:
    (outcome,) = await memory.add(owner, [FactDraft(text, expires_at=expires_at)])
    assert outcome.id is not None
    return outcome.id


async def visible(memory: MemoryService, owner: Owner, k: int = 10) -> set[str]:
    """Whatever any reader shows, checked to be the same."""
    texts = {hit.fact.text for hit in await memory.search(owner, "fact", k)}
    assert texts == {fact.text for fact in (await memory.page(owner)).facts}
    assert texts == {fact.text for fact in memory.facts(owner)} == {fact.text async for fact in memory.export(owner)}
    assert memory.count(owner) == len(texts)
    return texts


async def test_an_expired_fact_is_invisible_at_once_before_any_sweep(memory: MemoryService, clock: Clock) -> None:
    fact_id = await add(memory, ALICE, "fact one", clock.now + 2)
    await add(memory, ALICE, "fact two")
    assert await visible(memory, ALICE) == {"fact one", "fact two"}
    clock.now += 2
    assert await visible(memory, ALICE) == {"fact two"}
    for attempt in (memory.get(ALICE, fact_id), memory.update(ALICE, fact_id, FactChange("fact again"))):
        with pytest.raises(NotFound):
            await attempt


async def test_a_fact_that_has_expired_cannot_be_deleted_any_more(memory: MemoryService, clock: Clock) -> None:
    fact_id = await add(memory, ALICE, "fact one", clock.now + 2)
    clock.now += 2
    with pytest.raises(NotFound):
        await memory.delete(ALICE, fact_id)
    assert [event.event for event in await memory.history(ALICE, fact_id)] == ["added", "expired"]


async def test_expired_facts_do_not_take_the_places_of_living_ones(memory: MemoryService, clock: Clock) -> None:
    for i in range(5):
        await add(memory, ALICE, "fact" + " fact" * i, clock.now + 2)
    await add(memory, ALICE, "something else")
    clock.now += 3
    assert [hit.fact.text for hit in await memory.search(ALICE, "fact", 1)] == ["something else"]


async def test_the_sweeper_frees_what_has_expired_and_nothing_else(
    memory: MemoryService, clock: Clock, sink: RecordingSink, path: Path
) -> None:
    gone = [await add(memory, ALICE, "fact one", clock.now + 2), await add(memory, ALICE, "fact two", clock.now + 3)]
    await add(memory, ALICE, "fact three", clock.now + 60)
    other = await add(memory, BOB, "fact four", clock.now + 1)
    clock.now += 5
    assert await memory.maintain(clock.now) == 3
    assert sink.heard[-2:] == [("forgotten", ALICE, tuple(gone)), ("forgotten", BOB, (other,))]
    assert (memory.epoch(ALICE), memory.epoch(BOB)) == (1, 1)
    assert await visible(memory, ALICE) == {"fact three"} and memory.index_bytes(BOB) == 0
    assert memory.owners() == (ALICE,)
    assert await memory.maintain() == 0
    await memory.aclose()
    store = FactStore(path, clock=clock)
    assert store.count(ALICE) == 1 and store.owners() == (ALICE,)
    store.close()


async def test_the_history_of_an_expired_fact_says_so_and_not_what_it_said(memory: MemoryService, clock: Clock) -> None:
    fact_id = await add(memory, ALICE, "fact one", clock.now + 2)
    clock.now += 5
    unswept = await memory.history(ALICE, fact_id)
    await memory.maintain()
    for events in (unswept, await memory.history(ALICE, fact_id)):
        assert [(event.event, event.text, event.metadata) for event in events] == [
            ("added", None, None),
            ("expired", None, None),
        ]


async def test_a_text_whose_fact_has_expired_is_stored_anew(memory: MemoryService, clock: Clock) -> None:
    first = await add(memory, ALICE, "fact one", clock.now + 2)
    clock.now += 2
    (outcome,) = await memory.add(ALICE, [FactDraft("fact one")])
    assert outcome.status == "stored" and outcome.id != first
    assert await visible(memory, ALICE) == {"fact one"}
    await add(memory, ALICE, "fact two", clock.now + 2)
    clock.now += 2
    await memory.update(ALICE, str(outcome.id), FactChange("fact two"))
    assert await visible(memory, ALICE) == {"fact two"}


async def test_an_end_can_be_moved_and_removed(memory: MemoryService, clock: Clock) -> None:
    moved = await add(memory, ALICE, "fact one", clock.now + 2)
    removed = await add(memory, ALICE, "fact two", clock.now + 2)
    await memory.update(ALICE, moved, FactChange(expires_at=clock.now + 10))
    await memory.update(ALICE, removed, FactChange(expires_at=None))
    clock.now += 5
    assert await memory.maintain() == 0
    assert await visible(memory, ALICE) == {"fact one", "fact two"}
    clock.now += 5
    assert await visible(memory, ALICE) == {"fact two"}


async def test_a_fact_that_has_expired_before_it_is_added_fails_alone(memory: MemoryService, clock: Clock) -> None:
    drafts = [FactDraft("fact one", expires_at=clock.now), FactDraft("fact two")]
    failed, stored = await memory.add(ALICE, drafts)
    assert (failed.status, failed.id, stored.status) == ("failed", None, "stored")
    assert failed.reason == "expires_at has passed already"
    assert await visible(memory, ALICE) == {"fact two"}


async def test_expired_facts_stay_gone_after_a_restart_before_any_sweep(
    memory: MemoryService, clock: Clock, path: Path
) -> None:
    await add(memory, ALICE, "fact one", clock.now + 2)
    await add(memory, ALICE, "fact two")
    await memory.aclose()
    clock.now += 5
    again = await started(FactStore(path, clock=clock))
    assert await visible(again, ALICE) == {"fact two"}
    assert await again.maintain() == 1
    await again.aclose()


async def test_the_sweeper_outlives_a_disk_that_fails(
    memory: MemoryService, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(memory, ALICE, "fact one", clock.now + 2)
    clock.now += 2
    swept, asked = asyncio.Event(), memory.maintain
    tries: list[int] = []

    async def fails_first() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise Unavailable("the fact store cannot be used now")
        freed = await asked()
        swept.set()
        return freed

    monkeypatch.setattr(memory, "maintain", fails_first)
    task = asyncio.create_task(sweep_forever(memory, 0.0))
    await swept.wait()
    task.cancel()
    assert memory.owners() == ()


async def test_a_sweep_takes_more_than_one_transaction_when_it_must(memory: MemoryService, clock: Clock) -> None:
    drafts = [FactDraft(f"fact {i}", expires_at=clock.now + 1) for i in range(EXPIRED_AT_ONCE + 5)]
    await memory.add(ALICE, drafts)
    clock.now += 1
    assert await memory.maintain() == len(drafts)
    assert memory.owners() == ()


def test_an_end_is_written_like_any_moment_and_a_fact_says_more_than_its_request() -> None:
    defaults = parse_defaults(expires_at="2100-01-01")
    first, second = drafts_from_facts(["a", {"text": "b", "expires_at": FUTURE + 5}], defaults)
    assert (first.expires_at, second.expires_at) == (FUTURE, FUTURE + 5)
    assert drafts_from_facts(["a"], parse_defaults(expires_at="2100-01-01T02:00:00+02:00"))[0].expires_at == FUTURE


@pytest.mark.parametrize("written", ["2001-01-01", 5, "soon", True, float("nan")])
def test_an_end_that_has_passed_or_is_none_is_refused_by_name(written: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        drafts_from_facts([{"text": "a", "expires_at": written}], DraftDefaults())
    assert caught.value.param == "facts[0].expires_at"
