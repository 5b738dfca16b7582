"""The encoder under each recipe: what it costs, what stays, and that chunks of two primers never serve together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferscale_server.catalog import ChunkKey
from inferscale_server.encode import BATCH
from inferscale_server.job import Job
from inferscale_server.medoids import medoids
from inferscale_server.recipe import Recipe, RecipeSizes, make_recipe
from inferscale_server.types import Fact, Owner
from inferscale_server.vectors import FactVectors

from .builders import ALICE, BOB
from .engines import HEADER_IDS, ISOLATED, World, world

WORDS = 35
"""Tokens of a fact's line, about as many as LoCoMo's observations have."""
KINDS = ("primer", "session", "window", "neighbours", "isolated", "header", "primer+session", "primer+neighbours")


def sentences(count: int, session_size: int = 10, owner: Owner = ALICE) -> list[Fact]:
    """Facts of WORDS - 1 words, in sessions of so many."""
    return [
        Fact(
            f"{owner.user}-{number}", owner, number, " ".join(f"w{number}x{n}" for n in range(WORDS - 1)),
            None, None, f"s{number // session_size}", {}, 0.0,
        )
        for number in range(count)
    ]  # fmt: skip


def directions(facts: Sequence[Fact]) -> FactVectors:
    """A vector for each fact: deterministic, and no two alike."""
    random = np.random.default_rng(3)
    rows = random.standard_normal((1_000, 24))[: len(facts)]
    return FactVectors(
        tuple(each.id for each in facts),
        (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32),
    )


def encoding(name: str, **more: Any) -> World:
    """A world of this recipe, with room for prefixes and vectors for all facts."""
    facts: dict[Owner, list[Fact]] = {}
    recipe = make_recipe(name, RecipeSizes(primer_facts=more.pop("primer_facts", 20), window_turns=5, neighbours=5))
    settings: dict[str, Any] = {"rows": 100_000, "max_model_len": 20_000, "facts": facts} | more
    return world(recipe=recipe, vectors_of=lambda owner: directions(facts.get(owner, [])), **settings)


def lines(here: World, facts: Sequence[Fact]) -> tuple[int, ...]:
    return sum((here.encoder.job_of(each).token_ids for each in facts), ())


def cost(here: World, facts: Sequence[Fact]) -> float:
    """Tokens processed by encoding, all of them, for each token of the facts' own."""
    assert here.engine.prefilled == sum(here.encoder.tokens.values())
    return here.engine.prefilled / len(lines(here, facts))


# What it costs


async def test_a_bulk_load_costs_the_default_recipe_at_most_a_third_more_than_the_facts_own_tokens() -> None:
    here, facts = encoding("primer"), sentences(250)
    here.add(*facts)
    await here.encoder.drain()
    print(f"bulk load of 250 facts: {cost(here, facts):.2f} times their own tokens")
    assert cost(here, facts) <= 1.3 and all(here.chunk(each) for each in facts)


async def test_250_facts_added_one_by_one_cost_at_most_two_and_a_half_times_their_own_tokens() -> None:
    here, facts = encoding("primer"), sentences(250)
    for each in facts:
        here.add(each)
        await here.encoder.drain()
    print(f"250 facts one by one: {cost(here, facts):.2f} times their own tokens")
    assert cost(here, facts) <= 2.5
    assert len({chunk.behind for chunk in map(here.chunk, facts) if chunk and len(chunk.behind) >= 20}) == 1


async def test_a_session_costs_its_own_tokens() -> None:
    here, facts = encoding("session"), sentences(60)
    here.add(*facts)
    await here.encoder.drain()
    for number, each in enumerate(facts):
        chunk = here.chunk(each)
        assert chunk is not None and chunk.behind == tuple(f.id for f in facts[number - number % 10 : number])
    assert cost(here, facts) <= 1.1


@pytest.mark.parametrize("name", KINDS)
async def test_a_new_fact_never_has_the_others_encoded_again(name: str) -> None:
    here, facts = encoding(name), sentences(30)
    here.add(*facts)
    await here.encoder.drain()
    old = {each.id: here.chunk(each) for each in facts}
    before = len(here.engine.requests)
    new = sentences(31)[30]
    here.add(new)
    await here.encoder.drain()
    assert len(here.engine.requests) == before + 1 and here.chunk(new) is not None
    assert {each.id: here.chunk(each) for each in facts} == old


async def test_a_window_is_computed_inside_the_request_and_only_the_fact_is_kept() -> None:
    here, facts = encoding("window"), sentences(20)
    here.add(*facts)
    await here.encoder.drain()
    (encoded,) = here.requests_for(facts[15])
    assert encoded.before == HEADER_IDS + lines(here, facts[10:15]) and encoded.injected == len(HEADER_IDS)
    assert here.catalog.rows_used == len(HEADER_IDS) + len(lines(here, facts))


async def test_an_isolated_fact_costs_its_own_tokens_and_sees_nothing() -> None:
    here, facts = encoding("isolated"), sentences(20)
    here.add(*facts)
    await here.encoder.drain()
    assert all(encoded.before == () for encoded in here.engine.requests) and cost(here, facts) < 1.1


async def test_neighbours_are_those_at_hand_when_the_fact_is_encoded() -> None:
    here, facts = encoding("neighbours"), sentences(40)
    here.add(*facts)
    await here.encoder.drain()
    vectors = directions(facts)
    for each in facts:
        chunk = here.chunk(each)
        assert chunk is not None and chunk.behind == vectors.nearest(each.id, 5)[::-1]


async def test_in_a_combination_the_primer_comes_before_the_session() -> None:
    here, facts = encoding("primer+session", primer_facts=3), sentences(30)
    here.add(*facts)
    await here.encoder.drain()
    primer = next(chunk.behind[:3] for each in facts if (chunk := here.chunk(each)) and len(chunk.behind) > 3)
    for number, each in enumerate(facts):
        chunk = here.chunk(each)
        assert chunk is not None
        shared = primer[: primer.index(each.id)] if each.id in primer else primer
        session = [f.id for f in facts[number - number % 10 : number] if f.id not in shared]
        assert chunk.behind == (*shared, *session)


# What a delete takes along


@pytest.mark.parametrize("name", KINDS)
async def test_nothing_is_left_that_has_seen_a_deleted_text(name: str) -> None:
    here, facts = encoding(name), sentences(30)
    here.add(*facts)
    await here.encoder.drain()
    victim = facts[12]
    seen = {each.id for each in facts if (chunk := here.chunk(each)) and victim.id in chunk.behind}
    here.delete(victim)
    for each in facts:
        chunk = here.chunk(each)
        assert (chunk is None) == (each.id in seen | {victim.id})
        assert chunk is None or victim.id not in chunk.behind
    words = set(here.encoder.job_of(victim).token_ids[1:])
    before = len(here.engine.requests)
    await here.encoder.drain()
    assert all(here.chunk(each) for each in facts if each is not victim)
    for encoded in here.engine.requests[before:]:
        assert not words & {*encoded.before, *encoded.own}
    assert {encoded.own for encoded in here.engine.requests[before:]} >= {
        here.encoder.job_of(each).token_ids for each in facts if each.id in seen
    }


@pytest.mark.parametrize("name", ["window", "session"])
async def test_an_edited_fact_has_only_those_encoded_again_that_saw_it(name: str) -> None:
    here, facts = encoding(name), sentences(30)
    here.add(*facts)
    await here.encoder.drain()
    before = len(here.engine.requests)
    edited = Fact(**{f: getattr(facts[12], f) for f in Fact.__slots__} | {"text": "quite another text"})
    here.facts[ALICE][12] = edited
    here.encoder.forgotten(ALICE, (edited.id,))
    here.encoder.added(ALICE, (edited,))
    await here.encoder.drain()
    again = {encoded.own for encoded in here.engine.requests[before:]}
    saw = facts[13:18] if name == "window" else facts[13:20]
    assert again == {here.encoder.job_of(each).token_ids for each in (edited, *saw)}


# Two generations


async def grown(here: World, count: int) -> list[Fact]:
    """An owner of `count` facts, all of them encoded, whose next doubling is due when there are twice as many."""
    facts = sentences(count)
    here.add(*facts)
    await here.encoder.drain()
    return facts


def generations(here: World, facts: Sequence[Fact], primer: int) -> set[tuple[str, ...]]:
    """Primers that the chunks found now were encoded behind; a primer's own facts are left out."""
    chunks = [chunk for each in facts if (chunk := here.chunk(each)) is not None]
    return {chunk.behind for chunk in chunks if len(chunk.behind) == primer}


async def test_old_kv_serves_until_all_of_it_is_swapped_at_once() -> None:
    here = encoding("primer", primer_facts=4)
    facts = await grown(here, 40)
    old = {each.id: here.chunk(each) for each in facts}
    served: list[tuple[int, int]] = []

    def during(encoded: object) -> None:
        found = {each.id: here.chunk(each) for each in facts}
        served.append((sum(found[name] is old[name] for name in found), len(generations(here, facts, 4))))

    here.engine.during = during
    here.add(*sentences(80)[40:])
    await here.encoder.drain()
    assert {count for count, _ in served} == {40, 0}  # all of the old ones, then none
    assert {number for _, number in served} == {1}
    assert all(here.chunk(each) for each in sentences(80)) and len(generations(here, sentences(80), 4)) == 1
    assert here.catalog.rows_used == len(HEADER_IDS) + 80 * WORDS


@pytest.mark.parametrize("spare", [0, 1, 5, 20, 39])
async def test_without_room_for_two_generations_they_are_still_never_mixed(spare: int) -> None:
    here = encoding("primer", primer_facts=4, rows=len(HEADER_IDS) + (40 + spare) * WORDS)
    await grown(here, 40)
    mixed: list[int] = []
    here.engine.during = lambda encoded: mixed.append(len(generations(here, sentences(80), 4)))
    here.add(*sentences(80)[40:])
    await asyncio.wait_for(here.encoder.drain(), 20)
    encoded = [each for each in sentences(80) if here.chunk(each)]
    assert max(mixed) == 1 and len(generations(here, encoded, 4)) == 1 and len(encoded) == 40 + spare


async def test_a_new_primer_that_loses_a_fact_on_its_way_is_chosen_anew() -> None:
    here = encoding("primer", primer_facts=4)
    facts = await grown(here, 40)
    (serving,) = generations(here, facts, 4)
    deleted: list[Fact] = []

    def during(encoded: object) -> None:
        staged = (here.catalog.staged(ChunkKey("fact", ALICE, each.id)) for each in here.facts[ALICE])
        coming = {name for chunk in staged if chunk is not None for name in chunk.behind} - set(serving)
        if len(deleted) < 2 and coming:
            deleted.append(next(each for each in here.facts[ALICE] if each.id in coming))
            here.delete(deleted[-1])
            assert sum(here.chunk(each) is not None for each in facts) >= 38

    here.engine.during = during
    here.add(*sentences(90)[40:])
    await asyncio.wait_for(here.encoder.drain(), 20)
    left = [each for each in sentences(90) if each not in deleted]
    assert len(deleted) == 2 and all(here.chunk(each) for each in left) and len(generations(here, left, 4)) == 1
    assert here.catalog.rows_used == len(HEADER_IDS) + len(left) * WORDS and len(facts) == 40


async def test_a_fact_deleted_while_the_primer_is_chosen_is_not_in_it() -> None:
    here = encoding("primer", primer_facts=4)
    facts, asked = sentences(40), []

    def vectors_of(owner: Owner) -> FactVectors:
        vectors = directions(facts)
        if not asked:
            here.delete(facts[medoids(vectors.matrix, 4)[0]])
        asked.append(owner)
        return vectors

    here.encoder._primers._vectors_of = vectors_of
    here.add(*facts)
    await here.encoder.drain()
    assert len(asked) == 2 and len(here.facts[ALICE]) == 39 and all(here.chunk(each) for each in here.facts[ALICE])
    alive = {each.id for each in here.facts[ALICE]}
    assert all(set(chunk.behind) <= alive for chunk in here.catalog.of(ALICE))


async def test_a_deleted_owner_leaves_nothing_staged() -> None:
    here = encoding("primer", primer_facts=4)
    await grown(here, 40)

    def during(encoded: object) -> None:
        if ALICE in here.facts and here.catalog.staged(ChunkKey("fact", ALICE, "alice-7")) is not None:
            here.delete_owner(ALICE)

    here.engine.during = during
    here.add(*sentences(80)[40:])
    await here.encoder.drain()
    assert ALICE not in here.facts and here.catalog.rows_used == len(HEADER_IDS) == len(here.engine.rows)


async def test_a_context_of_an_older_primer_is_not_served_with_the_new_one() -> None:
    here = encoding("primer", primer_facts=4)
    await grown(here, 40)
    note = Job(ChunkKey("context", ALICE, "c"), (71, 72))
    here.encoder.want(ALICE, [note])
    await here.encoder.drain()
    assert note.key in here.catalog
    here.add(*sentences(80)[40:])
    await here.encoder.drain()
    assert note.key not in here.catalog
    here.encoder.want(ALICE, [note])
    await here.encoder.drain()
    chunk = here.catalog.get(note.key)
    assert chunk is not None and {chunk.behind} == generations(here, sentences(80), 4)


async def test_each_owner_has_a_primer_of_its_own() -> None:
    here = encoding("primer", primer_facts=4)
    here.add(*sentences(20))
    here.add(*sentences(20, owner=BOB))
    await here.encoder.drain()
    for owner in (ALICE, BOB):
        seen = {name for chunk in here.catalog.of(owner) for name in chunk.behind}
        assert seen and all(name.startswith(owner.user) for name in seen)


# Restarts and switches


async def test_a_restart_keeps_the_primer_that_was_chosen(tmp_path: Path) -> None:
    here = encoding("primer", folder=tmp_path)
    facts = await grown(here, 70)
    again = encoding("primer", folder=tmp_path, facts=here.facts)
    again.tokenize._words = here.tokenize._words
    again.encoder.added(ALICE, ())
    await again.encoder.drain()
    assert again.engine.requests == [] and again.encoder.tokens == {}
    assert [again.chunk(each).behind for each in facts] == [here.chunk(each).behind for each in facts]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["neighbours", "primer+neighbours"])
async def test_a_restart_keeps_the_neighbours_of_the_time_at_which_a_fact_was_encoded(
    name: str, tmp_path: Path
) -> None:
    here = encoding(name, folder=tmp_path)
    await grown(here, 30)
    facts = sentences(55)
    here.add(*facts[30:])
    await here.encoder.drain()
    now = directions(facts)
    assert any(here.chunk(each).behind[-5:] != now.nearest(each.id, 5)[::-1] for each in facts)  # type: ignore[union-attr]
    again = encoding(name, folder=tmp_path, facts=here.facts)
    again.tokenize._words = here.tokenize._words
    again.encoder.added(ALICE, ())
    await again.encoder.drain()
    assert again.engine.requests == []
    assert [again.chunk(each).behind for each in facts] == [here.chunk(each).behind for each in facts]  # type: ignore[union-attr]


async def test_a_switch_of_recipes_loads_nothing_of_the_other(tmp_path: Path) -> None:
    written: dict[Owner, list[Fact]] = {}
    for recipe in (ISOLATED, Recipe(primer_facts=4), make_recipe("session", RecipeSizes())):
        here = world(
            rows=10_000, max_model_len=9_000, folder=tmp_path, recipe=recipe, facts=written, fingerprint=recipe.name
        )
        if not written:
            here.add(*sentences(12))
        here.encoder.added(ALICE, ())
        await here.encoder.drain()
        assert here.encoder.results["loaded"] == 0 and here.encoder.results["stored"] == 13


async def test_what_was_evicted_is_encoded_behind_the_same_again() -> None:
    here = encoding("primer", primer_facts=4)
    facts = await grown(here, 3 * BATCH)
    chunk = here.chunk(facts[11])
    assert chunk is not None
    here.catalog.drop(chunk.key)
    here.encoder.want(ALICE, [here.encoder.job_of(facts[11])])
    await here.encoder.drain()
    again = here.chunk(facts[11])
    assert again is not None and again.behind == chunk.behind and again is not chunk


async def test_an_evicted_primer_fact_is_encoded_before_what_stands_behind_it() -> None:
    here = encoding("primer", primer_facts=4)
    facts = await grown(here, 3 * BATCH)
    last = next(chunk for each in facts if (chunk := here.chunk(each)) and len(chunk.behind) == 4)
    here.catalog.drop(ChunkKey("fact", ALICE, last.behind[1]))
    before = len(here.engine.requests)
    here.add(sentences(3 * BATCH + 1)[-1])
    await here.encoder.drain()
    first, second = here.engine.requests[before:]
    assert first.own == here.encoder.job_of(next(f for f in facts if f.id == last.behind[1])).token_ids
    assert second.injected == len(second.before)
