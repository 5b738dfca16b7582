"""R6, S13: preemption, clients that hang up and connectors that break harm nobody else, and leave nothing behind."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Any

import pytest

from .conftest import BLOCK, BLOCKS
from .live import Answer, LiveServer, assert_same
from .rogue import ANSWERING, SCHEDULER, WORKER

FACT = "The password of the boat house is a string of blue lanterns, said the old captain in Trieste."
QUESTION = "What is the password of the boat house?"
CROWD = 10
PROMPT_TOKENS = 9 * BLOCK - 2
"""Ten of these fit into the pool, and no longer fit when each has three tokens more."""


async def test_R6_preempted_and_abandoned_chats_leave_the_others_answers_and_the_pool_as_they_were(
    server: LiveServer,
) -> None:
    around = (await server.chat("crowd", "Tell me a long story.", context=[server.words(10)])).prompt_tokens - 10
    contexts = [server.words(PROMPT_TOKENS - around, seed=20 + number) for number in range(CROWD)]
    users = [f"crowd-{number}" for number in range(CROWD)]
    for user, context in zip(users, contexts, strict=True):
        await server.chat_encoded(user, "Tell me a long story.", context=[context], max_tokens=1)
    bodies = [
        server.body(user, "Tell me a long story.", {"mode": "kv", "context": [context]}, max_tokens=48, ignore_eos=True)
        for user, context in zip(users, contexts, strict=True)
    ]
    assert CROWD * 9 < BLOCKS < CROWD * 10
    undisturbed = [await server.send(body) for body in bodies[::2]]
    await server.forget_prefixes()
    blocks, rows, preempted = await server.free_blocks(), server.catalog.rows_used, await preemptions(server)

    staying = [server.send(body) for body in bodies[::2]]
    leaving = [server.stream(body, drop_after=30) for body in bodies[1::2]]
    answers, dropped = await asyncio.gather(asyncio.gather(*staying), asyncio.gather(*leaving))

    assert await preemptions(server) > preempted, "the pool was not tight enough for this test to mean anything"
    for answer, alone in zip(answers, undisturbed, strict=True):
        assert answer.told["mode"] == "kv" and answer.told["injected_tokens"] == alone.told["injected_tokens"]
        assert_same(answer, alone)
    assert all(len(events) < 48 for events in dropped)
    await server.encoded()
    assert await server.free_blocks() == blocks
    assert server.catalog.pins == 0 and server.catalog.rows_used == rows


async def preemptions(server: LiveServer) -> float:
    return await server.metric("vllm:num_preemptions_total")


async def broken(server: LiveServer, method: str, user: str, streaming: bool) -> Answer | list[dict]:  # type: ignore[type-arg]
    """One chat while `method` fails."""
    server.rogue(method)
    try:
        if streaming:
            return await server.stream(server.body(user, QUESTION, {"mode": "kv", "context": [FACT]}))
        return await server.chat(user, QUESTION, context=[FACT])
    finally:
        server.rogue("")


@pytest.mark.parametrize("method", [*SCHEDULER, *WORKER])
async def test_S13_a_hook_that_fails_harms_no_answer(server: LiveServer, method: str) -> None:
    user = f"rogue-{method}"
    clean = await server.chat_encoded(user, QUESTION, context=[FACT])
    await server.forget_prefixes()
    answer = await broken(server, method, user, streaming=False)
    assert isinstance(answer, Answer) and answer.status == 200
    assert_same(answer, clean)
    if method in ("load", "step", "allocated"):
        assert (answer.told["mode"], answer.told["reason"]) == ("text", "load_failed")
    if method in ("arrived", "claim"):
        assert answer.told["injected_tokens"] == 0
    after = await server.chat(user, QUESTION, context=[FACT])
    assert after.told["mode"] == "kv" and after.told["injected_tokens"] == clean.told["injected_tokens"]
    assert_same(after, clean)
    assert_same(await server.chat(user, QUESTION, mode="text", context=[FACT]), clean)


@pytest.mark.parametrize("method", ANSWERING)
async def test_S13_a_hook_that_answers_something_senseless_harms_no_answer(server: LiveServer, method: str) -> None:
    user = f"rogue-shape-{method}"
    clean = await server.chat_encoded(user, QUESTION, context=[FACT])
    await server.forget_prefixes()
    began = perf_counter()
    answer = await broken(server, f"{method}?", user, streaming=False)
    assert isinstance(answer, Answer) and answer.status == 200
    assert_same(answer, clean)
    assert_same(await server.chat(user, QUESTION, context=[FACT]), clean)
    print(f"S13: {method} answered something senseless: two answers in {perf_counter() - began:.2f} s")
    assert perf_counter() - began < 5 * 2.0


@pytest.mark.parametrize("method", [*SCHEDULER, *WORKER])
async def test_S13_a_hook_that_fails_harms_no_stream(server: LiveServer, method: str) -> None:
    user = f"rogue-stream-{method}"
    clean = await server.chat_encoded(user, QUESTION, context=[FACT])
    await server.forget_prefixes()
    events = await broken(server, method, user, streaming=True)
    assert isinstance(events, list) and not [event for event in events if "error" in event]
    assert text_of(events) == clean.text
    (told,) = [event["inferscale"] for event in events if "inferscale" in event]
    assert method not in ("load", "step", "allocated") or told["reason"] == "load_failed"
    assert_same(await server.chat(user, QUESTION, context=[FACT]), clean)


def text_of(events: list[dict]) -> str:  # type: ignore[type-arg]
    deltas = [choice["delta"] for event in events for choice in event.get("choices", ())]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("method", ["step", "begin", "end", "arrived"])
async def test_a_fact_encoded_while_a_hook_fails_is_never_wrong(server: LiveServer, method: str) -> None:
    user, context = f"rogue-encode-{method}", [FACT + f" He wrote {server.words(12, seed=len(method))}."]
    server.rogue(method)
    await server.chat(user, QUESTION, context=context, max_tokens=1)
    await server.encoded()
    server.rogue("")
    kv = await server.chat(user, QUESTION, context=context)
    text = await server.chat(user, QUESTION, mode="text", context=context)
    assert_same(kv, text)


async def test_a_failed_load_is_answered_beside_chats_that_go_on(server: LiveServer) -> None:
    users = [f"beside-{number}" for number in range(4)]
    clean = [await server.chat_encoded(user, QUESTION, context=[FACT]) for user in users]
    await server.forget_prefixes()
    server.rogue("load")
    answers = await asyncio.gather(*(server.chat(user, QUESTION, context=[FACT]) for user in users))
    server.rogue("")
    for answer, alone in zip(answers, clean, strict=True):
        assert answer.told["reason"] == "load_failed"
        assert_same(answer, alone)


async def test_a_second_try_that_vllm_refuses_ends_the_stream_with_an_error(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse

    await server.chat_encoded("refused", QUESTION, context=[FACT])
    await server.forget_prefixes()
    desk, tries = server.plugin._desk, 0
    create = desk._create

    async def refused(request: Any, raw_request: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            return await create(request, raw_request)
        return ErrorResponse(error=ErrorInfo(message="no room", type="server_error", code=503))

    monkeypatch.setattr(desk, "_create", refused)
    server.rogue("load")
    events = await server.stream(server.body("refused", QUESTION, {"mode": "kv", "context": [FACT]}))
    server.rogue("")
    assert tries == 2 and events[-1]["error"]["code"] == "engine_failed"
    monkeypatch.undo()
    assert_same(
        await server.chat("refused", QUESTION, context=[FACT]),
        await server.chat("refused", QUESTION, mode="text", context=[FACT]),
    )


async def test_S13_a_store_that_raises_or_hangs_costs_its_request_alone(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.remember("stored", FACT)
    clean = await server.chat("stored", QUESTION)
    assert clean.told["mode"] == "kv"
    entered = asyncio.Event()

    async def raises(*asked: object) -> Any:
        raise RuntimeError("the store is broken")

    async def hangs(*asked: object) -> Any:
        entered.set()
        await asyncio.Event().wait()

    memory = server.brain.memory
    for fault in (raises, hangs):
        monkeypatch.setattr(memory, "find", fault)
        victim = asyncio.create_task(server.chat("stored", QUESTION))
        if fault is raises:
            answer = await victim
            assert (answer.status, answer.body["error"]["code"]) == (500, "internal_error")
        else:
            await entered.wait()
        monkeypatch.undo()
        began = perf_counter()
        assert_same(await server.chat("stored", QUESTION), clean)
        print(f"S13: beside a store that {fault.__name__}, the next answer took {perf_counter() - began:.2f} s")
        assert perf_counter() - began < 5 * 2.0
    victim.cancel()
    await asyncio.gather(victim, return_exceptions=True)
