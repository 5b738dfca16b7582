"""KV on disk around an encoder on a fake engine: what is written is loaded again, what is forgotten is not."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path
from typing import Any

import pytest

from inferscale_server import kv_disk
from inferscale_server.catalog import ChunkKey
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.job import Job
from inferscale_server.kv_files import force, read_kv
from inferscale_server.recipe import Recipe
from inferscale_server.types import Fact, Owner

from .builders import ALICE, BOB, fact
from .engines import HEADER, HEADER_IDS, World, world


def facts(count: int, owner: Owner = ALICE) -> list[Fact]:
    return [fact(number, owner=owner) for number in range(count)]


def files(folder: Path) -> list[Path]:
    """Everything that lies there, unfinished files included."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


async def encoded(folder: Path, *all_facts: Fact, **more: Any) -> World:
    """A world in which these facts are encoded and written."""
    here = world(folder=folder, **more)
    if all_facts:
        here.add(*all_facts)
    await here.encoder.drain()
    return here


async def restarted(folder: Path, before: World, **more: Any) -> World:
    """The next start of the same server, as far as its encoder gets."""
    here = world(folder=folder, facts=before.facts, **more)
    here.tokenize._words = before.tokenize._words
    for owner in here.facts:
        here.encoder.added(owner, ())
    await here.encoder.drain()
    return here


def events(here: World) -> dict[str, int]:
    assert here.disk is not None
    return {f"{what}:{result}": count for (what, result), count in here.disk.events.items()}


async def test_a_restarted_server_encodes_nothing_again(tmp_path: Path) -> None:
    all_facts = facts(20)
    before = await encoded(tmp_path, *all_facts)
    after = await restarted(tmp_path, before)
    assert after.engine.requests == [] and before.encoder.results["stored"] >= 21
    assert after.encoder.results == {"loaded": 21}  # the facts and the header; no primer, since nothing needs it
    for each in all_facts:
        chunk, old = after.chunk(each), before.chunk(each)
        assert chunk is not None and old is not None and chunk.behind == old.behind
        assert after.engine.tokens_of(chunk) == after.encoder.job_of(each).token_ids
    assert max(after.engine.loads) <= kv_disk.SLICE_CHUNKS


async def test_facts_that_came_one_by_one_keep_the_primer_they_were_encoded_behind(tmp_path: Path) -> None:
    before = await encoded(tmp_path)
    for each in facts(3):
        before.add(each)
        await before.encoder.drain()
    after = await restarted(tmp_path, before)
    assert after.engine.requests == []
    assert {chunk.behind for chunk in after.catalog.of(ALICE)} == {
        chunk.behind for chunk in before.catalog.of(ALICE) if chunk.key.kind == "fact"
    }


async def test_a_new_fact_is_encoded_behind_the_primer_that_was_loaded(tmp_path: Path) -> None:
    before = await encoded(tmp_path, *facts(5))
    new = fact(99)
    before.facts[ALICE].append(new)
    after = await restarted(tmp_path, before)
    (request,) = after.engine.requests
    lines = (after.encoder.job_of(each).token_ids for each in facts(3))
    assert request.before == HEADER_IDS + sum(lines, ()) and request.injected == len(request.before)
    assert after.chunk(new) is not None


async def test_what_was_evicted_from_the_slab_is_loaded_when_a_chat_asks(tmp_path: Path) -> None:
    here, all_facts = await encoded(tmp_path, *facts(6), recipe=Recipe(header=False)), facts(6)
    requests = len(here.engine.requests)
    here.catalog.drop(ChunkKey("fact", ALICE, all_facts[2].id))
    here.encoder.want(ALICE, [here.encoder.job_of(all_facts[2])])
    await here.encoder.drain()
    assert here.chunk(all_facts[2]) is not None and len(here.engine.requests) == requests


async def test_contexts_and_other_headers_are_loaded_too(tmp_path: Path) -> None:
    def wanted() -> list[Job]:
        owner = Owner("local", "")
        return [Job(ChunkKey("context", ALICE, "c"), (71, 72)), Job(ChunkKey("header", owner, "h"), (5, 6, 7))]

    before = await encoded(tmp_path, *facts(3))
    for job in wanted():
        before.encoder.want(job.key.owner, [job])
    await before.encoder.drain()
    after = await restarted(tmp_path, before)
    for job in wanted():
        after.encoder.want(job.key.owner, [job])
    await after.encoder.drain()
    assert after.engine.requests == [] and all(job.key in after.catalog for job in wanted())


async def test_an_owner_cannot_load_anothers_kv_of_the_same_text(tmp_path: Path) -> None:
    same = [dataclasses.replace(fact(1, "the same text"), owner=owner) for owner in (ALICE, BOB)]
    before = await encoded(tmp_path, same[0], recipe=Recipe(header=False))
    before.facts[BOB] = [same[1]]
    after = await restarted(tmp_path, before, recipe=Recipe(header=False))
    assert len(after.engine.requests) == 1 and after.encoder.results == {"loaded": 2, "stored": 1}


# What does not check out


def damage(path: Path, how: int, dice: random.Random) -> None:
    """0 … 15: cut at that sixteenth; else flip one bit anywhere."""
    whole = bytearray(path.read_bytes())
    if how < 16:
        whole = whole[: len(whole) * how // 16]
    else:
        whole[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
    path.write_bytes(whole)


@pytest.mark.parametrize("when", ["before the start", "after the start"])
async def test_r3_a_damaged_file_is_removed_counted_and_encoded_again(tmp_path: Path, when: str) -> None:
    dice, rounds = random.Random(5), 24
    for how in range(0, 2 * rounds, 2):
        folder = tmp_path / str(how)
        (one,) = facts(1)
        before = await encoded(folder, one, recipe=Recipe(header=False))
        (path,) = [path for path in files(folder) if read_kv(path).header.identity.kind == "fact"]
        if when == "before the start":
            damage(path, how, dice)
        here = world(folder=folder, facts=before.facts, recipe=Recipe(header=False))
        if when == "after the start":
            damage(path, how, dice)
        here.encoder.added(ALICE, ())
        await here.encoder.drain()
        assert len(here.engine.requests) == 1 and not path.exists() and here.chunk(one) is not None
        assert sum(count for name, count in events(here).items() if name.startswith("drop:")) == 1
        assert here.encoder.results == {"loaded": 1, "stored": 1}
    print(f"R3, {when}: {rounds} of {rounds} damaged files detected, none served")


async def test_files_that_were_swapped_are_told_apart(tmp_path: Path) -> None:
    before = await encoded(tmp_path, *facts(2), recipe=Recipe(header=False))
    a, b = (p for p in files(tmp_path) if read_kv(p).header.identity.kind == "fact")
    whole_a, whole_b = a.read_bytes(), b.read_bytes()
    a.write_bytes(whole_b)
    b.write_bytes(whole_a)
    after = await restarted(tmp_path, before, recipe=Recipe(header=False))
    for each in facts(2):
        chunk = after.chunk(each)
        assert chunk is not None and after.engine.tokens_of(chunk) == after.encoder.job_of(each).token_ids


@pytest.mark.parametrize("change", ["primer", "text", "header"])
async def test_kv_that_saw_another_text_is_not_loaded(tmp_path: Path, change: str) -> None:
    before = await encoded(tmp_path, *facts(4))
    if change == "text":
        before.facts[ALICE][3] = dataclasses.replace(facts(4)[3], text="quite another text")
    elif change == "primer":
        before.facts[ALICE][0] = dataclasses.replace(facts(4)[0], text="quite another text")
    here = world(folder=tmp_path, facts=before.facts)
    if change == "header":
        other = Job(HEADER.key, (9, 9, 9))
        assert here.disk is not None
        source = FactSource(lambda owner: tuple(here.facts.get(owner, ())))
        here.encoder = Encoder(
            here.catalog, here.encoder._recipe, here.engine, before.tokenize, other, source, 500, disk=here.disk
        )  # type: ignore[arg-type]
    here.tokenize._words = before.tokenize._words
    here.encoder.added(ALICE, ())
    await here.encoder.drain()
    anew = {request.own for request in here.engine.requests}
    changed = before.facts[ALICE][3:] if change == "text" else before.facts[ALICE]
    assert {here.encoder.job_of(each).token_ids for each in changed} <= anew
    assert (change == "text") == (here.encoder.job_of(facts(4)[1]).token_ids not in anew)


async def test_a_missing_rank_is_no_chunk(tmp_path: Path) -> None:
    before = await encoded(tmp_path, *facts(2), recipe=Recipe(header=False))
    assert before.disk is not None
    two = kv_disk.KvDisk(tmp_path, 1 << 20, 2, 8, before.catalog, before.engine)
    two.open({})
    assert two.events == {("drop", "ranks"): 3} and files(tmp_path) == []


async def test_r8_without_its_folder_a_server_encodes_everything_again(tmp_path: Path) -> None:
    before = await encoded(tmp_path / "kv", *facts(5))
    for path in files(tmp_path):
        path.unlink()
    after = await restarted(tmp_path / "kv", before)
    for each in facts(5):
        chunk = after.chunk(each)
        assert chunk is not None and after.engine.tokens_of(chunk) == after.encoder.job_of(each).token_ids
    assert files(tmp_path) != []


# Budget and full disks


async def test_the_budget_holds_and_the_longest_unused_goes_first(tmp_path: Path) -> None:
    here = await encoded(tmp_path, *facts(3), recipe=Recipe(header=False))
    assert here.disk is not None
    budget = here.disk.shelf.bytes
    before = await restarted(tmp_path, here, recipe=Recipe(header=False), budget_bytes=budget)
    assert before.disk is not None
    await before.disk.note_used([ChunkKey("fact", ALICE, facts(3)[0].id)])
    before.add(fact(50))
    await before.encoder.drain()
    assert before.disk.shelf.bytes <= budget and sum(path.stat().st_size for path in files(tmp_path)) <= budget
    kept = {stored.identity.name for stored in before.disk.shelf.all()}
    assert facts(3)[0].id in kept and facts(3)[1].id not in kept


async def test_the_order_of_use_survives_a_restart(tmp_path: Path) -> None:
    here = await encoded(tmp_path, *facts(3), recipe=Recipe(header=False))
    assert here.disk is not None
    for age, stored in enumerate(here.disk.shelf.all()):
        (path,) = here.disk._paths(stored.stem)
        os.utime(path, (1_000 - age, 1_000 - age))
    oldest_first = [stored.stem for stored in here.disk.shelf.all()][::-1]
    after = world(folder=tmp_path, facts=here.facts)
    assert after.disk is not None and [stored.stem for stored in after.disk.shelf.all()] == oldest_first


async def test_without_a_budget_nothing_is_written(tmp_path: Path) -> None:
    here = await encoded(tmp_path, *facts(3), budget_bytes=0)
    assert files(tmp_path) == [] and all(here.chunk(each) for each in facts(3))


async def test_r4_a_full_disk_harms_no_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_disk, "FREE_RESERVE_BYTES", 1 << 60)
    here = await encoded(tmp_path, *facts(12))
    assert all(here.chunk(each) for each in facts(12)) and files(tmp_path) == []
    assert events(here)["save:full"] >= 13 and len(caplog.records) == 1
    monkeypatch.setattr(kv_disk, "FREE_RESERVE_BYTES", 0)
    here.add(fact(80))
    await here.encoder.drain()
    assert events(here)["save:ok"] == 1 and len(files(tmp_path)) == 1


async def test_r4_a_full_disk_makes_room_by_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = await encoded(tmp_path, *facts(3), recipe=Recipe(header=False))
    monkeypatch.setattr(kv_disk, "FREE_RESERVE_BYTES", 1 << 60)
    count = len(files(tmp_path))
    here.add(fact(50))
    await here.encoder.drain()
    assert events(here)["drop:full"] >= 1 and len(files(tmp_path)) < count


@pytest.mark.parametrize("broken", ["write", "force", "rename"])
async def test_r2_an_error_of_the_disk_leaves_no_file_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    def fails(*args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        if broken == "write":
            patch.setattr(os, "write", fails)
        elif broken == "force":
            patch.setattr(kv_disk, "force", fails)
        else:
            patch.setattr(os, "rename", fails)
        here = await encoded(tmp_path, *facts(2), recipe=Recipe(header=False))
    assert files(tmp_path) == [] and events(here) == {"save:unwritable": 3}
    assert all(here.chunk(each) for each in facts(2)) and len(caplog.records) == (broken != "write")


# Deletes


@pytest.mark.parametrize("victim", [0, 5], ids=["a primer fact", "another fact"])
async def test_s9_a_deleted_facts_files_are_gone_when_the_delete_returns(tmp_path: Path, victim: int) -> None:
    here, all_facts = await encoded(tmp_path, *facts(6)), facts(6)
    gone = all_facts[victim].id
    here.delete(all_facts[victim])
    await here.encoder.settled()
    left = [read_kv(path).header.identity for path in files(tmp_path)]
    assert all(i.name != gone and all(seen.fact_id != gone for seen in i.behind) for i in left)
    assert {i.kind for i in left} == ({"header"} if victim == 0 else {"header", "fact"})


async def test_s9_an_owners_files_are_gone_when_the_delete_returns(tmp_path: Path) -> None:
    here = await encoded(tmp_path, *facts(4))
    here.add(*facts(4, BOB))
    await here.encoder.drain()
    here.delete_owner(ALICE)
    await here.encoder.settled()
    assert here.disk is not None and here.disk.bytes_of(ALICE) == 0 < here.disk.bytes_of(BOB)
    assert all(read_kv(path).header.identity.owner != ALICE.digest() for path in files(tmp_path))


async def test_s10_a_file_that_is_written_while_its_fact_is_deleted_does_not_survive(tmp_path: Path) -> None:
    here, all_facts = world(folder=tmp_path, recipe=Recipe(header=False)), facts(3)

    def deletes(order: Any) -> None:
        if order.identity.name == all_facts[1].id and all_facts[1] in here.facts[ALICE]:
            here.delete(all_facts[1])

    here.engine.during_save = deletes
    here.add(*all_facts)
    await here.encoder.drain()
    names = {read_kv(path).header.identity.name for path in files(tmp_path)}
    assert all_facts[1].id not in names and {all_facts[0].id, all_facts[2].id} < names
    assert events(here)["save:forgotten"] == 1


async def test_s10_a_file_that_is_forced_while_its_owner_is_deleted_does_not_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(folder=tmp_path, recipe=Recipe(header=False))

    def deletes(path: Path) -> None:
        here.delete_owner(ALICE)
        force(path)

    monkeypatch.setattr(kv_disk, "force", deletes)
    here.add(*facts(3))
    await here.encoder.drain()
    assert {read_kv(path).header.identity.kind for path in files(tmp_path)} <= {"header"}
    assert here.disk is not None and here.disk.bytes_of(ALICE) == 0


async def test_s10_a_crash_between_commit_and_unlink_is_mended_at_the_next_start(tmp_path: Path) -> None:
    before = await encoded(tmp_path, *facts(6))
    before.facts[ALICE].pop(4)  # committed, and then the power went
    after = await restarted(tmp_path, before)
    assert events(after)["drop:orphan"] == 1
    assert after.engine.requests == []
    before.facts.clear()
    await restarted(tmp_path, before)
    assert {read_kv(path).header.identity.kind for path in files(tmp_path)} == {"header"}


async def test_what_is_forgotten_while_it_is_loaded_is_not_served(tmp_path: Path) -> None:
    before = await encoded(tmp_path, *facts(3), recipe=Recipe(header=False))
    here, load = world(folder=tmp_path, facts=before.facts, recipe=Recipe(header=False)), None
    load = here.engine.load

    async def deletes(orders: Any) -> Any:
        if facts(3)[1] in here.facts[ALICE] and any(order.identity.kind == "fact" for order in orders):
            here.delete(facts(3)[1])
        return await load(orders)

    here.engine.load = deletes  # type: ignore[method-assign]
    here.encoder.added(ALICE, ())
    await here.encoder.drain()
    assert here.chunk(facts(3)[1]) is None and here.chunk(facts(3)[0]) is not None
    assert all(read_kv(path).header.identity.name != facts(3)[1].id for path in files(tmp_path))


async def test_s9_a_thousand_files_are_gone_when_the_delete_returns(tmp_path: Path) -> None:
    here = await encoded(tmp_path, *facts(1_000), recipe=Recipe(header=False), rows=10_000, budget_bytes=1 << 24)
    assert len(files(tmp_path)) == 1_001
    here.delete_owner(ALICE)
    await here.encoder.settled()
    assert len(files(tmp_path)) == 1


async def test_nothing_is_pinned_and_no_row_is_lost_after_saves_and_loads(tmp_path: Path) -> None:
    before = await encoded(tmp_path, *facts(9))
    after = await restarted(tmp_path, before)
    for here in (before, after):
        here.delete_owner(ALICE)
        await here.encoder.drain()
        assert here.catalog.pins == 0 and here.catalog.rows_used == len(HEADER.token_ids)
