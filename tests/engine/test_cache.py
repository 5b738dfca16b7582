"""C4, C5, S2: blocks of the pool and of the prefix cache never carry over what belongs to another request or kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .live import Answer, LiveServer, assert_same

FACT = "The spare key lies under the third flower pot, and the cellar light must be switched off twice."
QUESTION = "Where does the spare key lie, and what about the light?"


def fill(number: float) -> Callable[[Any], int]:
    """A function that fills every layer's cache with one number; runs in the worker."""

    def filled(worker: Any) -> int:
        caches = worker.model_runner.kv_caches
        for cache in caches:
            cache.fill_(number)
        return len(caches)

    return filled


@pytest.mark.parametrize("mode", ["text", "kv"])
async def test_a_poisoned_pool_does_not_reach_an_answer(server: LiveServer, mode: str) -> None:
    """Not NaN: vLLM's CPU attention multiplies masked slots of a request's last block by zero, in plain text too."""
    await server.chat_encoded("bleed", QUESTION, context=[FACT], max_tokens=1)
    await server.forget_prefixes()
    clean = await server.chat("bleed", QUESTION, mode=mode, context=[FACT])
    await server.forget_prefixes()
    assert (await server.in_workers(fill(1e4)))[0] > 0
    try:
        poisoned = await server.chat("bleed", QUESTION, mode=mode, context=[FACT])
        assert poisoned.told["mode"] == mode and poisoned.cached == poisoned.told["injected_tokens"]
        assert_same(poisoned, clean)
    finally:
        await server.forget_prefixes()
        await server.in_workers(fill(0.0))


async def test_another_users_kv_in_the_pool_does_not_reach_an_answer(server: LiveServer) -> None:
    clean = await server.chat_encoded("bleed", QUESTION, context=[FACT])
    await server.forget_prefixes()
    for number in range(2):  # together longer than the pool
        await server.chat("stranger", f"{number} " + server.words(1500, seed=number), max_tokens=2)
    await server.forget_prefixes()
    assert_same(await server.chat("bleed", QUESTION, context=[FACT]), clean)


def cold(answer: Answer) -> bool:
    """Was nothing hit in the prefix cache? What is cached is what was injected."""
    return answer.cached == answer.told["injected_tokens"]


@pytest.mark.parametrize("order", [("text", "kv", "off"), ("off", "kv", "text")])
async def test_each_kind_of_request_equals_its_own_cold_run(server: LiveServer, order: tuple[str, ...]) -> None:
    await server.chat_encoded("kinds-warm", QUESTION, context=[FACT])
    alone: dict[str, Answer] = {}
    for mode in order:
        await server.forget_prefixes()
        alone[mode] = await server.chat("kinds-warm", QUESTION, mode=mode, context=[FACT])
    await server.forget_prefixes()
    for mode in order:
        answer = await server.chat("kinds-warm", QUESTION, mode=mode, context=[FACT])
        assert cold(answer) and answer.told["mode"] == mode
        assert_same(answer, alone[mode])


async def test_text_and_kv_of_the_same_tokens_never_hit_each_other(server: LiveServer) -> None:
    for user in ("order-a", "order-b"):
        await server.chat_encoded(user, QUESTION, context=[FACT], max_tokens=1)
    await server.forget_prefixes()
    kv_first = await server.chat("order-a", QUESTION, context=[FACT])
    text_after_kv = await server.chat("order-a", QUESTION, mode="text", context=[FACT])
    text_first = await server.chat("order-b", QUESTION, mode="text", context=[FACT])
    kv_after_text = await server.chat("order-b", QUESTION, context=[FACT])
    assert text_after_kv.cached == text_first.cached == 0 and cold(kv_first) and cold(kv_after_text)
    assert_same(kv_first, kv_after_text)
    assert_same(text_after_kv, text_first)


async def test_the_same_request_twice_hits_its_own_blocks_and_answers_the_same(server: LiveServer) -> None:
    question = QUESTION + " " + server.words(80, seed=3)
    first = await server.chat_encoded("twice", question, context=[FACT])
    again = await server.chat("twice", question, context=[FACT])
    assert again.cached > first.told["injected_tokens"] and again.told["mode"] == "kv"
    assert_same(first, again)


async def test_the_second_turn_of_a_conversation_answers_like_a_cold_one(server: LiveServer) -> None:
    first = await server.chat_encoded("turns", QUESTION, context=[FACT])
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "And how often must I switch the light?"},
    ]
    memory = {"mode": "kv", "context": [FACT]}
    warm = await server.send(server.body("turns", "", memory, messages=messages))
    await server.forget_prefixes()
    again = await server.send(server.body("turns", "", memory, messages=messages))
    text = await server.send(server.body("turns", "", {**memory, "mode": "text"}, messages=messages))
    assert warm.told["mode"] == "kv" and again.cached == again.told["injected_tokens"]
    assert_same(warm, again)
    assert_same(warm, text)


# S2


@pytest.mark.parametrize("mode", ["kv", "text", "off"])
async def test_S2_two_users_with_the_same_words_share_no_block(server: LiveServer, mode: str) -> None:
    question = QUESTION + " " + server.words(100, seed=4)
    for user in (f"same-a-{mode}", f"same-b-{mode}"):
        await server.remember(user, FACT)
        answer = await server.chat(user, question, mode=mode)
        assert answer.told["mode"] == mode and cold(answer)


async def test_two_users_share_no_block_on_vllms_own_completions_route(server: LiveServer) -> None:
    body = {"prompt": server.words(150, seed=6), "max_tokens": 1, "temperature": 0}
    cached = []
    for user in ("own-a", "own-a", "own-b", None):
        named = body if user is None else {**body, "user": user}
        answer = (await server.client.post("/v1/completions", json=named)).json()
        cached.append((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    assert cached[1] > 0 and (cached[0], cached[2], cached[3]) == (0, 0, 0)


async def test_a_chat_that_names_nobody_shares_no_block_with_one_that_does(server: LiveServer) -> None:
    question = server.words(100, seed=8)
    await server.chat("somebody", question, mode="off")
    assert (await server.chat(None, question)).cached == 0


async def test_a_deleted_fact_takes_its_owners_blocks_with_it(server: LiveServer) -> None:
    (gone,) = await server.remember("deletes", FACT)
    question = server.words(100, seed=9)
    await server.chat("deletes", question, mode="off")
    assert (await server.client.delete(f"/v1/memories/{gone}?user_id=deletes")).status_code == 200
    await server.encoded()
    assert (await server.chat("deletes", question, mode="off")).cached == 0
    assert FACT not in str((await server.chat("deletes", QUESTION)).told)


@pytest.mark.parametrize(
    "field",
    ["kv_transfer_params", "cache_salt", "vllm_xargs", "extra_args", "ec_transfer_params", "skip_reading_prefix_cache"],
)
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_cannot_name_salts_or_rows(server: LiveServer, route: str, field: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "max_tokens": 1}
    answer = await server.client.post(route, json={**body, field: {"inferscale": {}}})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "refused_field"
