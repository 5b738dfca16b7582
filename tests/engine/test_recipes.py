"""What the encoder injects instead of computing: chunks that were captured together, or one behind the other, equal
those that were encoded one by one behind the plain text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inferscale_server.behind import Behind
from inferscale_server.catalog import Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command
from inferscale_server.job import Run
from inferscale_server.types import LOCAL_TENANT, Owner

from .live import LiveServer

FACTS = (
    "Omar keeps three goats that are named after rivers.",
    "Omar learned to weld in 2019 from his aunt Petra.",
    "Petra runs a bicycle shop in Graz.",
    "Every March Omar repairs the roof of the old mill.",
    "Omar is afraid of thunder.",
    "Lena studies volcanoes in Iceland.",
    "Lena sends Omar a postcard each month.",
)
ROUNDING = 1e-4
"""Two ways to compute the same sums in float32; facts that see one fact less are apart by more than 1e-2."""


def chunks_of(server: LiveServer, user: str) -> list[Chunk]:
    """The user's facts in the slab, in the order in which they see each other."""
    return sorted(server.catalog.of(Owner(LOCAL_TENANT, user)), key=lambda chunk: len(chunk.behind))


async def as_text(server: LiveServer, chunk: Chunk, before: Sequence[Chunk]) -> Chunk:
    """The same tokens, encoded behind the header and those before them without any injection."""
    door = server.brain.engine_stats.__self__
    key = ChunkKey("context", Owner(LOCAL_TENANT, ""), f"twin-{chunk.stamp}")
    twin = server.catalog.reserve(key, chunk.token_ids, ())
    assert twin is not None
    header = server.catalog.get(server.brain.header_key).token_ids
    prefix = [*header, *(token for other in before for token in other.token_ids)]
    prompt = (*prefix, *chunk.token_ids, *chunk.token_ids[-1:] * SPARE_TOKENS)
    await door.encode(prompt, Command(None, (Capture(twin.stamp, len(prefix), twin.extents),)))
    assert await door.captured([(twin.stamp, twin.extents)]) == [True]
    return twin


@pytest.mark.parametrize("how", ["together", "one_by_one"])
async def test_facts_behind_injected_facts_equal_facts_behind_their_text(server: LiveServer, how: str) -> None:
    user = f"chain-{how}"
    for batch in [FACTS] if how == "together" else [(text,) for text in FACTS]:
        await server.remember(user, *batch)
    chunks = chunks_of(server, user)
    assert [len(chunk.behind) for chunk in chunks] == list(range(len(FACTS)))
    door, apart = server.brain.engine_stats.__self__, []
    for number, chunk in enumerate(chunks):
        twin = await as_text(server, chunk, chunks[:number])
        apart.append((await door.difference(chunk.extents, twin.extents)).worst)
        server.catalog.release(twin)
    other = await as_text(server, chunks[-1], chunks[1:-1])
    unlike = (await door.difference(chunks[-1].extents, other.extents)).worst
    server.catalog.release(other)
    print(f"{how}: largest relative difference {max(apart):.1e}; with one fact less before it {unlike:.1e}")
    assert max(apart) < ROUNDING < unlike


async def test_facts_that_begin_alike_lose_no_tokens_in_one_batch(server: LiveServer) -> None:
    texts = [f"Omar keeps three goats that are named after rivers, and in {year} one more came." for year in range(30)]
    await server.remember("alike", *texts)
    chunks = chunks_of(server, "alike")
    assert len(chunks) == len(texts) and {len(chunk.behind) for chunk in chunks} == set(range(21))


async def test_tokens_computed_by_encoding_are_counted(server: LiveServer) -> None:
    before = dict(server.brain.encoder.tokens)
    await server.remember("counted", *FACTS)
    own = sum(len(chunk.token_ids) for chunk in chunks_of(server, "counted"))
    after = server.brain.encoder.tokens
    assert after["own"] - before.get("own", 0) == own and after["prefix"] == before.get("prefix", 0)
    assert await server.metric("inferscale_encode_tokens_total") >= own
    status = (await server.client.get("/v1/inferscale/status")).json()
    assert status["encoding"]["tokens"] == dict(after)


async def test_a_tail_is_computed_although_it_is_encoded(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.remember("tail", *FACTS)
    whole = await server.chat_encoded("tail", "What is Omar afraid of?")
    monkeypatch.setattr(server.brain.recall, "tail_tokens", 16)
    cut = await server.chat("tail", "What is Omar afraid of?")
    assert cut.prompt_ids == whole.prompt_ids and cut.told["reason"] == whole.told["reason"] == "encoded"
    assert cut.told["injected_tokens"] == whole.told["injected_tokens"] - 16
    assert cut.told["prefilled_tokens"] == cut.prompt_tokens - cut.told["injected_tokens"]


@pytest.mark.parametrize("order", ["best_last", "best_first", "oldest_first"])
async def test_in_every_order_all_facts_are_injected_and_told_best_first(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    await server.remember(f"order-{order}", *FACTS)
    monkeypatch.setattr(server.brain.recall, "order", order)
    answer = await server.chat_encoded(f"order-{order}", "What is Omar afraid of?")
    scores = [fact["score"] for fact in answer.told["facts"]]
    assert answer.told["reason"] == "encoded" and scores == sorted(scores, reverse=True) and len(scores) == len(FACTS)


async def test_several_system_messages_are_served_as_one(server: LiveServer) -> None:
    await server.remember("systems", *FACTS)
    system = [{"role": "system", "content": text} for text in ("Speak like a pirate.", "Be brief.")]
    question = {"role": "user", "content": "What is Omar afraid of?"}
    body = server.body("systems", "", {"mode": "text"}) | {"messages": [*system, question]}
    answer = await server.send(body)
    served = server.brain.tokenize._tokenizer.decode(answer.prompt_ids)
    assert served.count("<|im_start|>system") == 1 and served.count("Speak like a pirate.\n\nBe brief.\n\n") == 1


async def run_of(server: LiveServer, most_tokens: int | None) -> tuple[Run, int]:
    """All facts one behind the other, behind the injected header; also how many requests that took."""
    door, header = server.brain.engine_stats.__self__, server.catalog.get(server.brain.header_key)
    chunks = []
    for text in FACTS:
        key = ChunkKey("context", Owner(LOCAL_TENANT, ""), f"part-{most_tokens}-{len(chunks)}")
        chunks.append(server.catalog.reserve(key, server.brain.tokenize(text), ()))
    run = Run(Behind(header.token_ids), chunks)
    requests = list(run.requests((header,), most_tokens))
    for request in requests:
        await door.encode(request.prompt_ids, request.command)
    assert all(await door.captured([(chunk.stamp, chunk.extents) for chunk in chunks]))
    return run, len(requests)


async def test_a_run_that_is_cut_captures_what_one_request_does(server: LiveServer) -> None:
    door = server.brain.engine_stats.__self__
    (whole, one), (cut, many) = await run_of(server, None), await run_of(server, 10)
    assert one == 1 and many > len(FACTS)  # parts begin and end inside facts
    for chunk, other in zip(whole.chunks, cut.chunks, strict=True):
        assert (await door.difference(chunk.extents, other.extents)).worst < ROUNDING
        server.catalog.release(chunk)
        server.catalog.release(other)
