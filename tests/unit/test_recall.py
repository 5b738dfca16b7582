"""The read verb on small real stores: what is found, what is planned, and what is queued to be encoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from inferscale_server.catalog import Catalog
from inferscale_server.costs import Costs, Line
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.facts import FactStore
from inferscale_server.filters import parse_filter
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.plan import Frame
from inferscale_server.recall import Recall, header_job_of
from inferscale_server.recipe import Recipe
from inferscale_server.types import FactDraft, Owner
from tests.memory.fakes import FakeEmbedder

from .builders import ALICE, BOB
from .engines import HEADER_IDS, FakeEngine, WordTokenizer

FRAME = Frame(HEADER_IDS, (9, 9))
ROOM = 200


@dataclass
class Desk:
    """Everything that recall joins."""

    recall: Recall
    memory: MemoryService
    encoder: Encoder
    catalog: Catalog
    embedder: FakeEmbedder

    async def add(self, *texts: str) -> None:
        """Facts of Alice, stored and not yet encoded."""
        await self.memory.add(ALICE, [FactDraft(text) for text in texts])


@pytest_asyncio.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A fact store on disk, an exact index, word hashes as vectors, a fake engine."""
    catalog, tokenize, embedder = Catalog(500, "f"), WordTokenizer(), FakeEmbedder()
    header = header_job_of(ALICE, HEADER_IDS)
    memory: MemoryService

    source = FactSource(lambda owner: memory.facts(owner), lambda owner: memory.vectors(owner))
    encoder = Encoder(catalog, Recipe(primer_facts=3), FakeEngine(), tokenize, header, source, 400)  # type: ignore[arg-type]
    memory = MemoryService(FactStore(tmp_path / "facts.sqlite3"), ExactIndex(), embedder, encoder)
    await memory.start()
    yield Desk(Recall(memory, catalog, encoder, tokenize, 2, 0), memory, encoder, catalog, embedder)  # type: ignore[arg-type]
    await memory.aclose()


async def test_the_nearest_facts_are_found_best_first(desk: Desk) -> None:
    await desk.add("goats eat grass", "trains leave at noon", "goats climb")
    found = await desk.recall.find(ALICE, "goats eat grass today", None, None, ())
    assert found.hits[0].fact.text == "goats eat grass" and len(found.hits) == 2
    assert found.hits[0].score > found.hits[1].score


async def test_more_are_found_when_more_are_asked_for(desk: Desk) -> None:
    await desk.add("goats eat grass", "trains leave at noon", "goats climb")
    assert len((await desk.recall.find(ALICE, "goats", 3, None, ())).hits) == 3
    assert len((await desk.recall.find(ALICE, "goats climb", 3, 0.99, ())).hits) == 1


async def test_a_filter_keeps_facts_out_of_a_chat(desk: Desk) -> None:
    drafts = [FactDraft(f"goats {place}", metadata={"place": place}) for place in ("here", "there")]
    await desk.memory.add(ALICE, drafts)
    found = await desk.recall.find(ALICE, "goats", 5, None, (), parse_filter({"place": "there"}))
    assert [hit.fact.text for hit in found.hits] == ["goats there"]


@pytest.mark.parametrize("question", ["", "  \n "])
async def test_no_question_finds_nothing_and_embeds_nothing(desk: Desk, question: str) -> None:
    await desk.add("goats eat grass")
    before = len(desk.embedder.calls)
    assert (await desk.recall.find(ALICE, question, None, None, ())).empty
    assert (await desk.recall.find(BOB, "goats", None, None, ())).empty
    assert len(desk.embedder.calls) == before


async def test_what_is_not_encoded_is_sent_as_text_and_queued(desk: Desk) -> None:
    await desk.add("goats eat grass")
    found = await desk.recall.find(ALICE, "goats", None, None, ())
    plan = desk.recall.plan(found, FRAME, "auto", ROOM)
    assert (plan.mode, plan.reason) == ("text", "header_not_encoded") and desk.encoder.queued() == 2
    await desk.encoder.drain()
    again = desk.recall.plan(found, FRAME, "auto", ROOM)
    assert (again.mode, again.reason, again.prompt_ids) == ("kv", "encoded", plan.prompt_ids)


async def test_a_callers_context_is_encoded_by_content_and_stands_behind_the_facts(desk: Desk) -> None:
    await desk.add("goats eat grass")
    found = await desk.recall.find(ALICE, "goats", None, None, ("first note", "second note"))
    desk.recall.plan(found, FRAME, "kv", ROOM)
    await desk.encoder.drain()
    plan = desk.recall.plan(found, FRAME, "kv", ROOM)
    assert plan.reason == "encoded"
    assert [line.text for line in plan.lines] == ["goats eat grass", "first note", "second note"]


async def test_others_have_the_event_loop_between_two_long_texts_of_a_context(desk: Desk) -> None:
    known: list[str] = []
    turns = 0

    class Slow:
        def knows(self, line: str, owner: Owner) -> bool:
            return line in known

        def __call__(self, line: str, owner: Owner) -> tuple[int, ...]:
            known.append(line)
            return (1,)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    desk.recall.tokenize = Slow()  # type: ignore[assignment]
    beside = asyncio.create_task(others())
    texts = tuple(f"{number} " * 4_000 for number in range(9))
    for _ in range(2):
        await desk.recall.find(ALICE, "", None, None, texts)
    beside.cancel()
    assert len(known) == 9 and turns >= 9
    await desk.recall.find(ALICE, "", None, None, ("short",))
    assert len(known) == 9


async def test_a_context_of_one_owner_is_not_served_to_another(desk: Desk) -> None:
    mine = await desk.recall.find(ALICE, "", None, None, ("the same note",))
    desk.recall.plan(mine, FRAME, "kv", ROOM)
    await desk.encoder.drain()
    others = await desk.recall.find(BOB, "", None, None, ("the same note",))
    assert desk.recall.plan(mine, FRAME, "kv", ROOM).mode == "kv"
    assert desk.recall.plan(others, FRAME, "kv", ROOM).reason == "nothing_encoded"


@pytest.mark.parametrize(("mode", "refusal"), [("text", None), ("kv", "prompt_logprobs")])
async def test_requests_that_cannot_use_kv_queue_nothing(desk: Desk, mode: str, refusal: str | None) -> None:
    await desk.encoder.drain()
    await desk.add("goats eat grass")
    await desk.encoder.drain()
    found = await desk.recall.find(ALICE, "goats", None, None, ("a new note",))
    plan = desk.recall.plan(found, Frame((7, 7, 7), (9,)), mode, ROOM, refusal)  # type: ignore[arg-type]
    assert plan.mode == "text" and desk.encoder.queued() == 0


async def test_a_server_without_kv_says_so(desk: Desk) -> None:
    await desk.add("goats eat grass")
    desk.recall.kv_refusals.append("ALiBi positions cannot be moved")
    found = await desk.recall.find(ALICE, "goats", None, None, ())
    plan = desk.recall.plan(found, FRAME, "auto", ROOM)
    assert (plan.mode, plan.reason) == ("text", "unsupported_model")


async def test_what_does_not_fit_is_left_out_worst_first(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb rocks")
    found = await desk.recall.find(ALICE, "goats eat", None, None, ())
    plan = desk.recall.plan(found, FRAME, "auto", 5)
    assert [line.text for line in plan.lines] == ["goats eat grass"] and plan.memory_tokens <= 5


@pytest.mark.parametrize("reader", [ALICE, replace(ALICE, adapter="pirate")])
async def test_S9_a_fact_that_is_deleted_between_search_and_plan_leaves_no_line_behind(
    desk: Desk, reader: Owner
) -> None:
    await desk.add("goats eat grass", "goats climb")
    found = await desk.recall.find(reader, "goats", None, None, ())
    assert len(desk.recall.lines(found, ROOM)) == len(desk.recall.fact_lines) == 2
    desk.recall.fact_lines.forget_owner(reader)
    await desk.memory.delete(ALICE, found.hits[0].fact.id)
    assert len(desk.recall.lines(found, ROOM)) == 2 and len(desk.recall.fact_lines) == 0
    assert len(desk.recall.lines(await desk.recall.find(reader, "goats", None, None, ()), ROOM)) == 1
    assert len(desk.recall.fact_lines) == 1


@pytest.mark.parametrize("reader", [ALICE, replace(ALICE, adapter="pirate")])
@pytest.mark.parametrize("facts", [(), ("goats eat grass",)])
async def test_S9_what_a_chat_brings_while_its_user_is_forgotten_is_not_encoded(
    desk: Desk, reader: Owner, facts: tuple[str, ...]
) -> None:
    await desk.add(*facts)
    found = await desk.recall.find(reader, "goats", None, None, ("a note",))
    await desk.memory.delete_owner(ALICE)
    plan = desk.recall.plan(found, FRAME, "kv", ROOM)
    assert len(plan.lines) == 1 + len(facts)
    await desk.encoder.drain()
    assert desk.catalog.of(reader) == ()
    desk.recall.plan(await desk.recall.find(reader, "goats", None, None, ("a note",)), FRAME, "kv", ROOM)
    await desk.encoder.drain()
    assert [chunk.key.kind for chunk in desk.catalog.of(reader)] == ["context"], "brought again afterwards"


async def test_kv_of_an_older_wording_is_not_served(desk: Desk) -> None:
    await desk.add("goats eat grass")
    await desk.encoder.drain()
    found = await desk.recall.find(ALICE, "goats", None, None, ())
    (hit,) = found.hits
    (chunk,) = [chunk for chunk in desk.catalog.of(ALICE) if chunk.key.name == hit.fact.id]
    stale = desk.catalog.reserve(chunk.key, (1, *chunk.token_ids[1:]), chunk.behind)
    assert stale is not None
    desk.catalog.commit(stale)
    assert desk.recall.plan(found, FRAME, "kv", ROOM).reason == "nothing_encoded"


async def test_a_tenants_users_share_headers_and_tenants_do_not() -> None:
    assert header_job_of(Owner("a", "x"), (1, 2)).key == header_job_of(Owner("a", "x"), (1, 2)).key
    assert header_job_of(Owner("a", "x"), (1, 2)).key != header_job_of(Owner("b", "x"), (1, 2)).key


async def test_auto_follows_the_costs_and_a_fixed_mode_does_not(desk: Desk) -> None:
    await desk.add("goats eat grass")
    await desk.encoder.drain()
    found = await desk.recall.find(ALICE, "goats", None, None, ())
    desk.recall.plan(found, FRAME, "auto", ROOM)
    await desk.encoder.drain()
    desk.recall.costs = Costs(prefill=Line(1.0, 1.0), inject=Line(50.0, 1.0), block_tokens=16)
    assert desk.recall.plan(found, FRAME, "auto", ROOM).reason == "text_cheaper"
    fixed = desk.recall.plan(found, FRAME, "kv", ROOM)
    assert (fixed.mode, fixed.reason, fixed.estimate) == ("kv", "encoded", None)
