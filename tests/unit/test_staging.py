"""Staging: cold facts come up before the chat is submitted, within the deadline, and best first."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from inferscale_server import staging
from inferscale_server.catalog import ChunkKey
from inferscale_server.staging import Stager, Wanted

from .builders import ALICE, BOB, fact
from .cold_facts import Cold, cold


def damage(folder: Path) -> None:
    """Every file has another end."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1] + b"\0\1")


def files(folder: Path) -> int:
    """How many there are."""
    return sum(path.is_file() for path in folder.rglob("*"))


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
    all_ = await cold(tmp_path, deadline_s=0.1)
    all_.engine.gate = asyncio.Event()
    assert await all_.stager.stage(all_.wanted) == {}
    assert all_.stager.results["disk", "late"] == 3
    all_.engine.gate.set()
    await all_.stager.settled()
    assert len(all_.warm()) == 3


async def test_no_more_files_are_read_when_the_deadline_has_passed(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, facts=20, deadline_s=0.1)
    all_.engine.gate, before = asyncio.Event(), len(all_.engine.loads)
    await all_.stager.stage(all_.wanted)
    all_.engine.gate.set()
    await all_.stager.settled()
    assert len(all_.engine.loads) == before + 1 and 0 < len(all_.warm()) < 20


async def test_the_best_facts_come_first(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, facts=20, deadline_s=0.1)
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


@pytest.mark.parametrize(
    ("text_s", "waits_s"), [(1.0, 0.2), (0.05, 0.01), (100.0, 5.0), (None, 5.0)], ids=lambda seconds: f"{seconds}"
)
async def test_a_chat_waits_a_fifth_of_what_text_would_take_and_no_longer_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text_s: float | None, waits_s: float
) -> None:
    """Text would take so long for just the tokens that are cold; the clock stands still."""
    all_ = await cold(tmp_path, deadline_s=5.0)
    asked: list[int] = []
    all_.stager._text_s = lambda tokens: asked.append(tokens) or text_s  # type: ignore[func-returns-value]
    waited: list[float] = []

    async def wait(tasks: set[asyncio.Task[None]], **limit: float) -> None:
        waited.append(limit["timeout"])
        await asyncio.gather(*tasks)

    monkeypatch.setattr(staging, "perf_counter", lambda: 0.0)
    monkeypatch.setattr(staging.asyncio, "wait", wait)
    all_.stager._s_per_token["disk"] = 60.0
    assert all_.stager.coming(all_.wanted).seconds == pytest.approx(waits_s)
    await all_.stager.stage(all_.wanted)
    assert waited == [pytest.approx(waits_s)]
    assert set(asked) == {sum(len(one.token_ids) for one in all_.wanted)}


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
    all_ = await cold(tmp_path, deadline_s=0.1)
    all_.engine.gate, before = asyncio.Event(), all_.world.catalog.rows_used
    await all_.stager.stage(all_.wanted)
    await all_.stager.aclose()
    await all_.world.encoder.wipe()
    assert all_.world.catalog.rows_used == before and all_.warm() == [] and not all_.stager._in_flight


# One word for each cold text that a chat wanted


def words(stager: Stager) -> dict[str, int]:
    """How often each word was said, over all tiers."""
    said: Counter[str] = Counter()
    for (_, result), count in stager.results.items():
        said[result] += count
    return dict(said)


async def held_at_the_gate(all_: Cold) -> asyncio.Task[object]:
    """A chat whose load has been commanded and does not end."""
    all_.engine.gate = asyncio.Event()
    staging = asyncio.create_task(all_.stager.stage(all_.wanted))
    await all_.engine.reached.wait()
    return staging


def open_gate(all_: Cold) -> None:
    assert all_.engine.gate is not None
    all_.engine.gate.set()


async def test_what_comes_after_the_deadline_was_late_and_nothing_else(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, facts=10, deadline_s=0.1)
    all_.engine.gate = asyncio.Event()
    await all_.stager.stage(all_.wanted)
    open_gate(all_)
    await all_.stager.settled()
    assert all_.warm() and words(all_.stager) == {"late": 10}


async def test_what_finds_no_rows_is_not_late_too(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, of=[fact(number, "one two three four") for number in range(1, 4)])
    catalog = all_.world.catalog
    free = catalog.rows - catalog.rows_used - 4 - len(all_.wanted[0].token_ids) // 2
    filler = catalog.reserve(ChunkKey("context", BOB, "filler"), tuple(range(free)), ())
    assert filler is not None
    catalog.commit(filler)
    with catalog.pinned([filler]):
        await all_.stager.stage(all_.wanted)
    assert words(all_.stager) == {"staged": 1, "no_room": 2}


async def test_a_chat_that_wants_more_than_fits_has_the_best_of_it(tmp_path: Path) -> None:
    all_ = await cold(tmp_path, facts=20)
    catalog, tokens = all_.world.catalog, [len(one.token_ids) for one in all_.wanted]
    free = catalog.rows - catalog.rows_used - sum(tokens[:10])
    pinned = catalog.reserve(ChunkKey("context", BOB, "in use"), tuple(range(free)), ())
    loose = catalog.reserve(ChunkKey("context", BOB, "not in use"), tuple(range(sum(tokens[:4]))), ())
    assert pinned is not None and loose is not None
    catalog.commit(pinned)
    catalog.commit(loose)
    with catalog.pinned([pinned]):
        await all_.stager.stage(all_.wanted)
    assert all_.warm() == [one.id for one in all_.facts[:10]]
    assert words(all_.stager) == {"staged": 10, "no_room": 10} and catalog.pins == 0


async def test_what_came_for_one_chat_is_not_pushed_out_by_the_next_before_it_is_planned(tmp_path: Path) -> None:
    mine, bobs = [fact(number) for number in range(1, 9)], [fact(number, owner=BOB) for number in range(1, 9)]
    all_ = await cold(tmp_path, of=mine)
    all_.world.add(*bobs)
    await all_.world.encoder.drain()
    catalog, theirs = all_.world.catalog, [all_.want(one) for one in bobs]
    catalog.drop_where(BOB, lambda chunk: True)
    await all_.world.encoder.wipe()
    tokens = sum(len(one.token_ids) for one in theirs)
    for number in range(2):  # what others have used long ago, and what nobody has; then there is no room left
        free = tokens if number == 0 else catalog.rows - catalog.rows_used - tokens
        chunk = catalog.reserve(ChunkKey("context", BOB, str(number)), tuple(range(free)), ())
        assert chunk is not None
        catalog.commit(chunk)
        if number == 0:
            catalog.get(chunk.key)
        else:
            held = catalog.pin([chunk])
    planned: list[int] = []

    async def chat(wanted: list[Wanted]) -> None:
        await all_.stager.stage(wanted)
        planned.append(sum(one.key in catalog for one in wanted))

    await asyncio.gather(chat(all_.wanted), chat(theirs))
    held.release()
    assert planned == [8, 8]


async def test_what_does_not_check_out_is_not_late_too(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    damage(tmp_path)
    await all_.stager.stage(all_.wanted)
    assert words(all_.stager) == {"failed": 3}


async def test_what_is_forgotten_while_it_comes_was_not_staged(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    staging = await held_at_the_gate(all_)
    all_.world.delete(all_.facts[2])
    all_.stager.forget_facts(ALICE, [all_.facts[2].id])
    open_gate(all_)
    await staging
    assert words(all_.stager) == {"staged": 2, "overtaken": 1}


async def test_what_is_encoded_while_it_comes_was_not_staged(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    staging = await held_at_the_gate(all_)
    chunk = all_.world.catalog.reserve(all_.wanted[0].key, all_.wanted[0].token_ids, ())
    assert chunk is not None
    all_.world.catalog.commit(chunk)
    open_gate(all_)
    await staging
    assert words(all_.stager) == {"staged": 2, "overtaken": 1} and all_.world.chunk(all_.facts[0]) is chunk


async def test_two_chats_that_want_the_same_bring_it_up_once(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    first = await held_at_the_gate(all_)
    second = asyncio.create_task(all_.stager.stage(all_.wanted))
    await asyncio.sleep(0)
    open_gate(all_)
    await asyncio.gather(first, second)
    assert words(all_.stager) == {"staged": 3, "overtaken": 3} and len(all_.warm()) == 3


async def test_a_fault_of_the_engine_is_no_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_ = await cold(tmp_path, facts=20)

    async def breaks(orders: object) -> None:
        raise OSError("the engine is gone")

    monkeypatch.setattr(all_.engine, "load", breaks)
    assert await all_.stager.stage(all_.wanted) == {}
    assert words(all_.stager) == {"failed": 20}


# What is coming


async def test_what_could_come_is_counted_by_its_tokens_and_what_is_warm_is_not(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    await all_.stager.stage(all_.wanted[:1])
    coming = all_.stager.coming(all_.wanted)
    assert coming.tokens == sum(len(one.token_ids) for one in all_.wanted[1:])
    assert [chunk.key for chunk in coming.warm] == [all_.wanted[0].key]


async def test_how_long_it_takes_is_known_from_what_came_before_and_never_longer_than_a_chat_waits(
    tmp_path: Path,
) -> None:
    all_ = await cold(tmp_path, deadline_s=5.0)
    assert all_.stager.coming(all_.wanted).seconds == 0.0
    await all_.stager.stage(all_.wanted[:1])
    assert 0.0 < all_.stager.coming(all_.wanted).seconds <= 5.0
    all_.stager._s_per_token["disk"] = 60.0
    assert all_.stager.coming(all_.wanted).seconds == 5.0


async def test_another_users_delete_holds_no_staging_up(tmp_path: Path) -> None:
    """A write of Bob's fact is under way when the fact is deleted; Alice's chat does not wait for its end."""
    all_ = await cold(tmp_path)
    disk, bobs = all_.world.disk, fact(1, owner=BOB)
    assert disk is not None
    writing, go_on = asyncio.Event(), asyncio.Event()
    save = all_.engine.save

    async def slow(orders: object) -> object:
        writing.set()
        await go_on.wait()
        return await save(orders)  # type: ignore[arg-type]

    all_.engine.save = slow  # type: ignore[method-assign, assignment]
    all_.world.add(bobs)
    draining = asyncio.create_task(all_.world.encoder.drain())
    await writing.wait()
    all_.world.delete(bobs)
    deleting = asyncio.create_task(disk.settled())
    assert set((await all_.stager.stage(all_.wanted)).values()) == {"disk"}
    assert not deleting.done(), "the chat waited as long as the delete"
    go_on.set()
    await asyncio.gather(draining, deleting)
    assert disk.bytes_of(BOB) == 0


async def test_a_file_that_does_not_check_out_is_unlinked_while_nobody_waits(tmp_path: Path) -> None:
    all_ = await cold(tmp_path)
    damage(tmp_path)
    assert all_.world.disk is not None
    before = files(tmp_path)
    await all_.stager.stage(all_.wanted)
    unlinking = all_.world.disk._doomed._task
    assert unlinking is not None
    await unlinking
    assert files(tmp_path) == before - 3
