"""A run cut into small requests beside chats: none computes more than it may, all together capture what one would.

Two engines: one that only counts, and a tiny transformer whose keys and values can be compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from inferscale_server.batch import MAX_TRIES
from inferscale_server.behind import Behind
from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Command, rows_of
from inferscale_server.encode import BATCH
from inferscale_server.engine.pace import STEP_TOKENS, Pace
from inferscale_server.job import Errand, Job, Run, runs_of
from inferscale_server.recipe import Recipe
from inferscale_server.types import Fact
from tests.families.small_engine import VOCABULARY, SmallEngine

from .builders import ALICE, fact
from .engines import HEADER_IDS, Encoded, FakeEngine, World, world
from .test_encode_recipes import WORDS, encoding, lines, sentences

MOST = 10


@dataclass
class PacedEngine(FakeEngine):
    """The counting engine under a real pace, on a clock that requests and sleep move; a chat comes every 6 s."""

    now_s: float = 0.0
    chats: int = 0

    def __post_init__(self) -> None:
        self.pace = Pace(lambda: self.now_s, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s > 6.0 * self.chats:
            self.chats += 1
            self.pace.chat_arrived()
        await asyncio.sleep(0)

    def most_tokens(self) -> int | None:
        return self.pace.most_tokens

    async def encode(self, prompt_ids: Sequence[int], command: Command, adapter: str = "") -> None:
        async with self.pace.encoding(len(prompt_ids)):
            await super().encode(prompt_ids, command, adapter)
            self.now_s += 0.08


def long_facts(count: int, words: int = 35) -> list[Fact]:
    """Facts whose lines are longer than a request beside chats may compute."""
    return [fact(number, " ".join(f"w{number}x{at}" for at in range(words))) for number in range(count)]


def assert_encoded(here: World, facts: Sequence[Fact]) -> None:
    """Each fact has its own tokens in its rows, and no row is lost."""
    chunks = [here.chunk(each) for each in facts]
    for each, chunk in zip(facts, chunks, strict=True):
        assert chunk is not None and here.engine.tokens_of(chunk) == here.encoder.job_of(each).token_ids
    assert here.catalog.rows_used == len(HEADER_IDS) + sum(len(chunk.token_ids) for chunk in chunks if chunk)


async def test_beside_chats_no_request_computes_more_than_it_may() -> None:
    here, facts = world(rows=2_000, recipe=Recipe(primer_facts=8), max_model_len=1_000, most=MOST), long_facts(30)
    here.add(*facts)
    await here.encoder.drain()
    assert here.engine.largest == MOST
    assert_encoded(here, facts)


async def test_beside_a_chat_every_few_seconds_no_step_is_long() -> None:
    here, facts = (
        world(rows=9_000, recipe=Recipe(primer_facts=20), max_model_len=3_000, kind=PacedEngine),
        long_facts(80),
    )
    here.engine.pace.chat_arrived()  # type: ignore[attr-defined]
    here.add(*facts, fact(999, " ".join(f"long{at}" for at in range(700))))
    await here.encoder.drain()
    assert here.engine.chats > 1  # type: ignore[attr-defined]
    assert STEP_TOKENS - 10 < here.engine.largest <= STEP_TOKENS and here.engine.most_at_once == 1
    assert all(here.chunk(each) is not None for each in facts)


async def test_what_is_computed_does_not_grow_when_it_is_cut_but_for_the_throw_away_tokens() -> None:
    cut, whole = (
        world(rows=2_000, recipe=Recipe(primer_facts=8), max_model_len=1_000, most=most) for most in (MOST, None)
    )
    for here in (cut, whole):
        here.add(*long_facts(30))
        await here.encoder.drain()
    assert {kind: cut.encoder.tokens[kind] for kind in ("own", "prefix")} == {
        kind: whole.encoder.tokens[kind] for kind in ("own", "prefix")
    }
    assert cut.engine.prefilled == sum(cut.encoder.tokens.values())
    assert cut.encoder.tokens["spare"] == SPARE_TOKENS * cut.engine.number


async def test_without_chats_a_batch_goes_whole_and_together() -> None:
    here = world(rows=2_000, recipe=Recipe(primer_facts=8), max_model_len=1_000)
    here.add(*long_facts(30))
    await here.encoder.drain()
    assert here.engine.largest > BATCH * 35 and here.engine.most_at_once == BATCH


@pytest.mark.parametrize("name", ["window", "neighbours", "primer+neighbours"])
async def test_a_window_of_each_facts_own_is_cut_too(name: str) -> None:
    here, facts = encoding(name, most=MOST, primer_facts=4), sentences(24)
    here.add(*facts)
    await here.encoder.drain()
    assert here.engine.largest == MOST and here.encoder.tokens["prefix"] > 0
    assert_encoded(here, facts)


async def test_a_window_for_which_there_are_no_rows_is_computed_at_once() -> None:
    facts = sentences(8)
    here = encoding("window", most=MOST, rows=len(HEADER_IDS) + WORDS * len(facts))
    here.add(*facts)
    await here.encoder.drain()
    assert here.engine.largest > MOST
    assert_encoded(here, facts)


async def test_what_stands_behind_a_lost_part_is_not_kept_and_is_encoded_again() -> None:
    here, facts = world(rows=2_000, recipe=Recipe(primer_facts=4), max_model_len=1_000, most=MOST), long_facts(4)
    lost = here.encoder.job_of(facts[1]).token_ids[-1]
    refused: list[int] = []

    def refuses(encoded: Encoded) -> bool:
        if lost in encoded.own and len(refused) < MAX_TRIES:
            refused.append(encoded.capture.stamp)
        return encoded.capture.stamp in refused

    here.engine.refuses = refuses
    here.engine.checks_rows = False  # what a lost part left in the rows is injected into the next, as in a real slab
    here.add(*facts)
    await here.encoder.drain()
    assert [here.chunk(each) is not None for each in facts] == [True, False, True, True]
    assert here.encoder.results["incomplete"] == MAX_TRIES
    text = HEADER_IDS + lines(here, facts[:3])
    last = [
        encoded for encoded in here.engine.requests if encoded.own[-1] == here.encoder.job_of(facts[3]).token_ids[-1]
    ]
    assert (last[-1].before + last[-1].own)[: len(text)] == text


def run_of(catalog: Catalog, texts: Sequence[tuple[int, ...]]) -> Run:
    """Facts that stand one behind the other, behind no header."""
    placed, behind = [], Behind((5, 6, 7))
    for number, token_ids in enumerate(texts):
        errand = Errand(Job(ChunkKey("fact", ALICE, str(number)), token_ids), behind)
        chunk = catalog.reserve(errand.job.key, token_ids, behind.fact_ids)
        assert chunk is not None
        placed.append((errand, chunk))
        behind = behind.then(errand.job.line)
    (run,) = runs_of(placed)
    return run


async def encode(engine: SmallEngine, run: Run, most_tokens: int | None) -> int:
    """Carry a run out; returns how many requests that took."""
    asked = 0
    for request in run.requests((), most_tokens):
        await engine.encode(request.prompt_ids, request.command)
        asked += 1
    return asked


@pytest.mark.parametrize("most_tokens", [1, 7, 16, 50])
async def test_the_parts_capture_what_one_request_does(most_tokens: int) -> None:
    engine, catalog = SmallEngine(), Catalog(1_000, "f")
    texts = [tuple((7 * at + 3 * number) % VOCABULARY for at in range(40 + number)) for number in range(3)]
    whole, cut = (run_of(catalog, texts) for _ in range(2))
    for run in (whole, cut):
        run.scratch = catalog.reserve(ChunkKey("context", ALICE, "scratch"), run.uncovered(()), ())
    assert await encode(engine, whole, None) == 1
    assert await encode(engine, cut, most_tokens) == -(-(3 + sum(map(len, texts))) // most_tokens)
    for one, other in zip(whole.chunks, cut.chunks, strict=True):
        assert all(await engine.captured([(c.stamp, c.extents) for c in (one, other)]))
        difference = await engine.difference(one.extents, other.extents)
        assert difference.worst < 1e-5, difference


async def test_the_parts_of_a_chunk_in_scattered_rows_come_together() -> None:
    """Rows between those of others, and a part that ends inside an extent."""
    engine, catalog = SmallEngine(), Catalog(60, "f")
    held = [catalog.reserve(ChunkKey("fact", ALICE, f"h{at}"), (1,) * 5, ()) for at in range(12)]
    freed = [chunk for chunk in held[::2] if chunk is not None]
    for chunk in freed:
        catalog.release(chunk)
    catalog.wiped(catalog.unwiped)
    token_ids = tuple(at % VOCABULARY for at in range(25))
    chunk = catalog.reserve(ChunkKey("fact", ALICE, "a"), token_ids, ())
    assert chunk is not None and len(chunk.extents) == 5 and len(set(rows_of(chunk.extents))) == 25
    assert await encode(engine, Run(Behind(), [chunk]), 7) == 4
    assert await engine.captured([(chunk.stamp, chunk.extents)]) == [True]


def outcomes(run: Run, complete: Sequence[Chunk]) -> list[str | None]:
    """What becomes of each chunk when these came whole."""
    found = run.outcomes({chunk.stamp for chunk in complete})
    return [found[chunk.stamp] for chunk in run.chunks]


def test_only_what_stands_behind_nothing_lost_is_trusted() -> None:
    catalog = Catalog(100, "f")
    run = run_of(catalog, [(1,), (2,), (3,)])
    first, second, third = run.chunks
    assert outcomes(run, run.chunks) == ["stored"] * 3
    assert outcomes(run, [first, third]) == ["stored", "incomplete", None]
    assert outcomes(run, [second]) == ["incomplete", None, "incomplete"]
    run.scratch = catalog.reserve(ChunkKey("context", ALICE, "scratch"), run.uncovered(()), ())
    assert outcomes(run, run.chunks) == ["incomplete"] * 3
