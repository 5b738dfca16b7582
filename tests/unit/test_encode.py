"""The encoder on a fake engine: what is encoded behind what, how often it is tried, and that the forgotten stays so."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import groupby

import pytest

from inferscale_server.batch import MAX_TRIES
from inferscale_server.catalog import ChunkKey
from inferscale_server.command import rows_of
from inferscale_server.encode import BATCH
from inferscale_server.job import Job
from inferscale_server.recipe import Recipe
from inferscale_server.types import Owner

from .builders import ALICE, BOB, fact
from .engines import HEADER, HEADER_IDS, ISOLATED, Encoded, world


def facts(count: int, owner=ALICE):  # type: ignore[no-untyped-def]
    return [fact(number, owner=owner) for number in range(count)]


def context(name: str, *token_ids: int, owner=ALICE) -> Job:  # type: ignore[no-untyped-def]
    return Job(ChunkKey("context", owner, name), token_ids)


async def test_every_fact_is_encoded_behind_header_and_primer_and_never_behind_its_own_copy() -> None:
    here, all_facts = world(), facts(9)
    here.add(*all_facts)
    await here.encoder.drain()
    for number, each in enumerate(all_facts):
        before = (here.encoder.job_of(other).token_ids for other in all_facts[: min(number, 3)])
        chunk, (encoded,) = here.chunk(each), here.requests_for(each)
        assert chunk is not None and encoded.before == HEADER_IDS + sum(before, ())
        assert chunk.behind == tuple(f.id for f in all_facts[: min(number, 3)])
        assert here.engine.tokens_of(chunk) == chunk.token_ids == here.encoder.job_of(each).token_ids
    assert here.encoder.queued() == here.encoder.running() == 0


async def test_what_waits_is_counted_for_each_owner_until_it_is_encoded() -> None:
    here, mine = world(), facts(4)
    here.add(*mine)
    here.add(*facts(2, BOB))
    assert (here.encoder.queued_of(ALICE), here.encoder.queued_of(BOB)) == (4, 2)
    await here.encoder.drain()
    assert (here.encoder.queued_of(ALICE), here.encoder.queued_of(BOB)) == (0, 0)


async def test_where_kv_cannot_be_used_nothing_waits_for_it() -> None:
    here = world()
    here.add(*facts(3))
    here.encoder.switch_off()
    here.add(*facts(5)[3:])
    here.encoder.forgotten(ALICE, [facts(1)[0].id])
    assert here.encoder.queued() == here.encoder.queued_of(ALICE) == here.encoder.running() == 0
    await here.encoder.drain()
    assert here.engine.requests == [] and here.catalog.rows_used == 0


async def test_what_waits_is_counted_without_a_look_at_anybodys_facts_and_each_owner_is_looked_through_once() -> None:
    here, looks = world(rows=20_000), []
    owners = [Owner("local", f"user{number}") for number in range(20)]
    rosters = here.encoder._rosters
    look = rosters._facts_of
    rosters._facts_of = lambda owner: looks.append(owner) or look(owner)  # type: ignore[func-returns-value]
    for owner in owners:
        here.add(*facts(30, owner))
    assert here.encoder.queued() == 1 + 600 and {here.encoder.queued_of(owner) for owner in owners} == {30}
    assert looks == []
    await here.encoder.drain()
    assert here.encoder.queued() == 0 and sorted(looks, key=str) == sorted(owners, key=str)
    for owner in owners:
        here.delete(here.facts[owner][-1])
        here.add(fact(30, owner=owner))
        here.catalog.drop(ChunkKey("fact", owner, here.facts[owner][7].id))
        here.encoder.want(owner, [here.encoder.job_of(here.facts[owner][7])])
    assert here.encoder.queued() == 40
    await here.encoder.drain()
    assert here.encoder.queued() == 0 and len(looks) == len(owners)
    assert all(here.chunk(here.facts[owner][place]) for owner in owners for place in (7, 29))


async def test_the_primer_is_computed_once_as_its_own_facts_and_injected_for_all_others() -> None:
    here, all_facts = world(), facts(20)
    here.add(*all_facts)
    await here.encoder.drain()
    primer = [here.requests_for(each)[0] for each in all_facts[:3]]
    assert len({encoded.request for encoded in primer}) == 1  # one request captures all three
    for each in all_facts[8:]:
        (encoded,) = here.requests_for(each)
        assert encoded.injected == len(encoded.before)
    assert here.encoder.tokens["own"] == sum(len(encoded.own) for encoded in here.engine.requests)
    assert here.catalog.pins == 0


async def test_isolated_facts_are_encoded_alone() -> None:
    here, all_facts = world(recipe=ISOLATED), facts(4)
    here.add(*all_facts)
    await here.encoder.drain()
    assert all(here.requests_for(each)[0].before == () and here.chunk(each) for each in all_facts)


async def test_headers_and_contexts_come_before_facts() -> None:
    here = world()
    here.add(*facts(4))
    here.encoder.want(ALICE, [context("c", 71, 72)])
    await here.encoder.drain()
    kinds = [encoded.own for encoded in here.engine.requests]
    assert kinds[0] == HEADER_IDS
    assert kinds.index((71, 72)) < min(kinds.index(here.encoder.job_of(f).token_ids) for f in facts(4))


async def test_a_context_is_encoded_behind_the_owners_primer() -> None:
    here = world()
    here.add(*facts(3))
    here.encoder.want(ALICE, [context("c", 71, 72)])
    await here.encoder.drain()
    (encoded,) = [encoded for encoded in here.engine.requests if encoded.own == (71, 72)]
    assert encoded.before == HEADER_IDS + sum((here.encoder.job_of(each).token_ids for each in facts(3)), ())


async def test_owners_take_turns() -> None:
    here = world()
    here.add(*facts(3 * BATCH, ALICE))
    here.add(*facts(3 * BATCH, BOB))
    await here.encoder.drain()
    of_alice = {here.encoder.job_of(each).token_ids for each in facts(3 * BATCH, ALICE)}
    order = ["alice" if r.own in of_alice else "bob" for r in here.engine.requests if r.before]
    turns = [(name, len(list(batch))) for name, batch in groupby(order)]
    assert [name for name, _ in turns] == ["alice", "bob"] * (len(turns) // 2)
    assert max(size for _, size in turns) == BATCH
    assert here.engine.most_at_once == BATCH


async def test_while_there_are_few_facts_each_is_encoded_once_behind_those_there_are() -> None:
    here, all_facts = world(recipe=Recipe(primer_facts=20)), facts(20)
    for each in all_facts:
        here.add(each)
        await here.encoder.drain()
    for number, each in enumerate(all_facts):
        (encoded,), chunk = here.requests_for(each), here.chunk(each)
        assert chunk is not None and chunk.behind == tuple(f.id for f in all_facts[:number])
        assert encoded.injected == len(encoded.before)


# Tries


@pytest.mark.parametrize("failures", range(MAX_TRIES + 2))
async def test_an_incomplete_capture_is_tried_again_at_most_three_times(failures: int) -> None:
    here, all_facts = world(), facts(4)
    victim = here.encoder.job_of(all_facts[3]).token_ids
    here.engine.refuses = lambda encoded: encoded.own == victim and len(here.requests_for(all_facts[3])) <= failures
    here.add(*all_facts)
    await here.encoder.drain()
    assert len(here.requests_for(all_facts[3])) == min(failures + 1, MAX_TRIES)
    assert (here.chunk(all_facts[3]) is not None) == (failures < MAX_TRIES)
    assert all(here.chunk(each) is not None for each in all_facts[:3]) and here.encoder.queued() == 0


async def test_an_incomplete_capture_is_tried_under_a_new_stamp_and_its_rows_come_back() -> None:
    here = world(refuses=lambda encoded: encoded.own != HEADER_IDS, recipe=ISOLATED)
    here.add(*facts(1))
    await here.encoder.drain()
    stamps = [r.capture.stamp for r in here.engine.requests]
    assert len(set(stamps)) == len(stamps) == 1 + MAX_TRIES
    assert here.catalog.rows_used == len(HEADER_IDS)


async def test_a_fact_that_was_given_up_is_not_tried_again_when_a_chat_wants_it() -> None:
    here, (one,) = world(refuses=lambda encoded: encoded.own != HEADER_IDS, recipe=ISOLATED), facts(1)
    here.add(one)
    await here.encoder.drain()
    here.encoder.want(ALICE, [here.encoder.job_of(one)])
    await here.encoder.drain()
    assert len(here.requests_for(one)) == MAX_TRIES


async def test_behind_a_primer_fact_that_cannot_be_captured_its_text_is_computed() -> None:
    here, all_facts = world(), facts(12)
    lost = here.encoder.job_of(all_facts[1]).token_ids
    here.engine.refuses = lambda encoded: encoded.own == lost
    here.add(*all_facts)
    await here.encoder.drain()
    primer = HEADER_IDS + sum((here.encoder.job_of(each).token_ids for each in all_facts[:3]), ())
    encoded = here.requests_for(all_facts[11])[-1]
    assert encoded.before == primer and encoded.injected == len(HEADER_IDS) + len(all_facts[0].text.split()) + 1
    assert [here.chunk(each) is not None for each in all_facts] == [True, False] + [True] * 10


async def test_a_context_that_comes_before_the_primer_is_encoded_behind_its_text() -> None:
    here = world()
    here.add(*facts(3))
    here.encoder.want(ALICE, [context("c", 71, 72)])
    await here.encoder.drain()
    (encoded,) = [encoded for encoded in here.engine.requests if encoded.own == (71, 72)]
    assert encoded.injected == len(HEADER_IDS) < len(encoded.before) and here.encoder.queued() == 0


async def test_a_failing_request_does_not_take_its_neighbours_along() -> None:
    here, all_facts = world(), facts(5)
    victim = here.encoder.job_of(all_facts[4]).token_ids

    def during(encoded: Encoded) -> None:
        if encoded.own == victim:
            raise RuntimeError("planted")

    here.engine.during = during
    here.add(*all_facts)
    await here.encoder.drain()
    assert [here.chunk(each) is not None for each in all_facts] == [True] * 4 + [False]
    assert len(here.requests_for(all_facts[4])) == MAX_TRIES


async def test_after_a_fault_of_the_engine_the_owner_is_still_queued() -> None:
    here, all_facts = world(), facts(3)
    real, broken = here.engine.captured, [True]

    async def captured(attempts):  # type: ignore[no-untyped-def]
        if broken.pop() if broken else False:
            raise ConnectionError("planted")
        return await real(attempts)

    await here.encoder.drain()
    here.engine.captured = captured  # type: ignore[method-assign]
    here.add(*all_facts)
    with pytest.raises(ConnectionError):
        await here.encoder.drain()
    assert here.encoder.queued() == 3 and here.encoder.running() == 0
    await here.encoder.drain()
    assert all(here.chunk(each) is not None for each in all_facts)


# Forgetting


async def test_a_fact_deleted_while_it_is_encoded_is_never_committed_and_its_rows_are_wiped() -> None:
    here, all_facts = world(), facts(6)
    victim = all_facts[5]
    tokens = here.encoder.job_of(victim).token_ids
    here.engine.during = lambda encoded: here.delete(victim) if encoded.own == tokens else None
    here.add(*all_facts)
    await here.encoder.drain()
    assert here.chunk(victim) is None and len(here.requests_for(victim)) == 1
    assert here.encoder.results["dropped"] == 1 and here.catalog.unwiped == ()
    assert tokens[-1] not in {token for _, token in here.engine.rows.values()}


async def test_a_fact_deleted_while_its_primer_is_encoded_is_never_encoded() -> None:
    here, all_facts = world(), facts(BATCH + 1)
    victim, rest = all_facts[BATCH], all_facts[:BATCH]
    here.add(*all_facts)

    def during(encoded: Encoded) -> None:
        if encoded.before == HEADER_IDS and victim in here.facts[ALICE]:
            here.delete(victim)

    here.engine.during = during
    await here.encoder.drain()
    assert here.requests_for(victim) == [] and here.chunk(victim) is None
    assert all(here.chunk(each) is not None for each in rest)


@pytest.mark.parametrize("moment", ["header", "primer", "fact"])
async def test_an_owner_deleted_while_being_encoded_leaves_nothing(moment: str) -> None:
    here, all_facts = world(), facts(2 * BATCH)
    here.encoder.want(ALICE, [context("c", 71, 72)])
    here.add(*all_facts)

    def during(encoded: Encoded) -> None:
        now = "header" if not encoded.before else "primer" if encoded.before == HEADER_IDS else "fact"
        if now == moment and ALICE in here.facts:
            here.delete_owner(ALICE)

    here.engine.during = during
    await here.encoder.drain()
    assert here.catalog.of(ALICE) == () and here.catalog.rows_used == len(HEADER_IDS)
    assert len(here.engine.rows) == len(HEADER_IDS) and here.encoder.queued() == 0


async def test_what_was_encoded_behind_a_deleted_primer_fact_is_gone_before_the_call_returns() -> None:
    here, all_facts = world(), facts(6)
    here.encoder.want(ALICE, [context("c", 71, 72)])
    here.add(*all_facts)
    await here.encoder.drain()
    here.delete(all_facts[1])
    assert [chunk.key.name for chunk in here.catalog.of(ALICE)] == [all_facts[0].id] and here.encoder.queued() == 4
    await here.encoder.drain()
    for each in all_facts:
        chunk = here.chunk(each)
        assert (chunk is None) == (each is all_facts[1])
        assert chunk is None or all_facts[1].id not in chunk.behind


async def test_a_primer_fact_deleted_while_others_are_encoded_behind_it_spoils_them() -> None:
    here, all_facts = world(), facts(6)
    tokens = here.encoder.job_of(all_facts[5]).token_ids

    def during(encoded: Encoded) -> None:
        if encoded.own == tokens and all_facts[0] in here.facts[ALICE]:
            here.delete(all_facts[0])

    here.engine.during = during
    here.add(*all_facts)
    await here.encoder.drain()
    seen = here.encoder.job_of(all_facts[0]).token_ids[-1]
    for each in all_facts[1:]:
        chunk, last = here.chunk(each), here.requests_for(each)[-1]
        assert chunk is not None and all_facts[0].id not in chunk.behind and seen not in last.before


async def test_deleting_a_fact_outside_the_primer_costs_no_other_fact_its_kv() -> None:
    here, all_facts = world(), facts(6)
    here.add(*all_facts)
    await here.encoder.drain()
    before = len(here.engine.requests)
    here.delete(all_facts[4])
    await here.encoder.drain()
    assert len(here.engine.requests) == before and here.chunk(all_facts[5]) is not None


async def test_deletes_outside_the_primer_do_not_look_through_the_owners_facts() -> None:
    here, all_facts, looks = world(), [fact(number) for number in range(40)], []
    here.add(*all_facts)
    await here.encoder.drain()
    rosters = here.encoder._rosters
    look = rosters._facts_of
    rosters._facts_of = lambda owner: looks.append(owner) or look(owner)  # type: ignore[func-returns-value]
    for doomed in all_facts[3:]:
        here.delete(doomed)
        await here.encoder.drain()
    assert looks == [] and len(here.catalog.of(ALICE)) == 3  # the primer's
    here.delete(all_facts[0])
    await here.encoder.drain()
    assert looks == [] and all(here.chunk(each) for each in all_facts[1:3])


async def test_one_owners_delete_leaves_the_others_kv() -> None:
    here = world()
    here.add(*facts(3, ALICE))
    here.add(*facts(3, BOB))
    await here.encoder.drain()
    kept = here.catalog.of(BOB)
    here.delete_owner(ALICE)
    assert here.catalog.of(BOB) == kept and HEADER.key in here.catalog


async def test_rows_that_a_chat_still_reads_are_wiped_when_it_ends() -> None:
    here, (one,) = world(recipe=ISOLATED), facts(1)
    here.add(one)
    await here.encoder.drain()
    chunk = here.chunk(one)
    assert chunk is not None
    pin = here.catalog.pin([chunk])
    here.delete(one)
    await here.encoder.drain()
    assert set(rows_of(chunk.extents)) <= set(here.engine.rows)
    background = asyncio.create_task(here.encoder.run())
    await asyncio.sleep(0)
    pin.release()
    for _ in range(5):
        await asyncio.sleep(0)
    background.cancel()
    with suppress(asyncio.CancelledError):
        await background
    assert not set(rows_of(chunk.extents)) & set(here.engine.rows) and here.catalog.unwiped == ()


async def test_rows_stay_quarantined_when_the_wipe_fails() -> None:
    here, (one,) = world(recipe=ISOLATED), facts(1)
    here.add(one)
    await here.encoder.drain()
    used, real = here.catalog.rows_used, here.engine.wipe

    async def wipe(extents):  # type: ignore[no-untyped-def]
        raise ConnectionError("planted")

    here.engine.wipe = wipe  # type: ignore[method-assign]
    here.delete(one)
    with pytest.raises(ConnectionError):
        await here.encoder.drain()
    assert here.catalog.rows_used == used
    here.engine.wipe = real  # type: ignore[method-assign]
    await here.encoder.drain()
    assert here.catalog.rows_used == len(HEADER_IDS)
