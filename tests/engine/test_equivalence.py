"""C2, C3: KV that was captured and injected answers like prefill, at every length around a block's edge."""

from __future__ import annotations

import pytest

from .conftest import BLOCK
from .live import LiveServer, assert_same

STORY = (
    "Omar keeps three goats that are named after rivers, Danube, Loire and Tagus. He learned to weld in 2019 from his "
    "aunt Petra, who runs a bicycle shop in Graz. Every March he repairs the roof of the old mill, and he is afraid of "
    "thunder. His sister Lena studies volcanoes in Iceland and sends a postcard with a puffin on the stamp each month."
)
QUESTIONS = [
    "What are Omar's goats named after?",
    "How many goats does Omar keep?",
    "When did Omar learn to weld?",
    "Who taught Omar to weld?",
    "What does Petra run?",
    "Where is the bicycle shop?",
    "What does Omar repair every March?",
    "What is Omar afraid of?",
    "Who is Lena?",
    "What does Lena study?",
    "Where does Lena study?",
    "What does Lena send each month?",
    "What is on the stamp?",
    "Name one of the goats.",
    "Is Omar afraid of dogs?",
    "Tell me about the mill.",
    "Write a short poem about Omar.",
    "Which city is mentioned?",
    "What is two plus two?",
    "Say hello.",
]


async def test_one_chunk_that_holds_the_memory_answers_like_prefill(server: LiveServer) -> None:
    await server.chat_encoded("c2", QUESTIONS[0], context=[STORY])
    for question in QUESTIONS:
        kv = await server.chat("c2", question, context=[STORY])
        text = await server.chat("c2", question, mode="text", context=[STORY])
        assert kv.told["mode"] == "kv" and kv.told["injected_tokens"] > 100
        assert text.told["mode"] == "text" and text.told["injected_tokens"] == 0
        assert kv.prompt_ids == text.prompt_ids
        assert_same(kv, text)


async def test_a_remembered_fact_is_injected_and_reported(server: LiveServer) -> None:
    facts = {"Omar keeps three goats named after rivers.", "Omar learned to weld in 2019."}
    ids = await server.remember("smoke", *facts)
    answer = await server.chat("smoke", "What did Omar learn?")
    told = answer.told
    assert told["mode"] == "kv" and told["reason"] == "encoded" and answer.owned_ids == ids
    assert told["injected_tokens"] == answer.cached > 0
    assert told["injected_tokens"] + told["prefilled_tokens"] == answer.prompt_tokens
    assert {fact["text"] for fact in told["facts"]} == facts


def header_tokens(server: LiveServer) -> int:
    """Tokens before the memory."""
    return len(server.catalog.get(server.brain.header_key).token_ids)


@pytest.mark.parametrize("past_edge", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [1, 2])
async def test_memory_that_ends_around_a_blocks_edge(server: LiveServer, blocks: int, past_edge: int) -> None:
    header = header_tokens(server)
    memory = -header % BLOCK + blocks * BLOCK + past_edge
    text_of = server.words(memory, seed=blocks)
    user = f"edge-{blocks}-{past_edge}"
    kv = await server.chat_encoded(user, "Which words did I write down?", context=[text_of])
    text = await server.chat(user, "Which words did I write down?", mode="text", context=[text_of])
    assert kv.told["injected_tokens"] == kv.cached == header + memory
    assert (header + memory) % BLOCK == past_edge % BLOCK
    assert_same(kv, text)


@pytest.mark.parametrize("memory", [3, 4, 2 * BLOCK + 1])
async def test_short_memory_behind_the_header(server: LiveServer, memory: int) -> None:
    text_of, user = server.words(memory, seed=memory), f"short-{memory}"
    kv = await server.chat_encoded(user, "Which words?", context=[text_of])
    assert kv.told["injected_tokens"] == kv.cached == header_tokens(server) + memory
    assert_same(kv, await server.chat(user, "Which words?", mode="text", context=[text_of]))


async def test_prompts_that_end_around_a_blocks_edge(server: LiveServer) -> None:
    context = [server.words(20, seed=5)]
    first = await server.chat_encoded("prompt-edge", "Say", context=context)
    missing = -first.prompt_tokens % BLOCK or BLOCK
    for extra in (missing - 1, missing, missing + 1):
        question = "Say" + " dog" * extra
        await server.forget_prefixes()
        kv = await server.chat("prompt-edge", question, context=context)
        text = await server.chat("prompt-edge", question, mode="text", context=context)
        assert kv.prompt_tokens % BLOCK == (extra - missing) % BLOCK
        assert kv.told["injected_tokens"] + kv.told["prefilled_tokens"] == kv.prompt_tokens
        assert_same(kv, text)


async def test_memory_and_question_longer_than_a_step(server: LiveServer) -> None:
    context, question = [server.words(700, seed=2)], "Repeat: " + " ".join(["river stone"] * 300)
    kv = await server.chat_encoded("chunked", question, context=context)
    text = await server.chat("chunked", question, mode="text", context=context)
    assert kv.told["injected_tokens"] == kv.cached == header_tokens(server) + 700
    assert kv.told["prefilled_tokens"] > 512
    assert_same(kv, text)


async def test_every_number_of_facts_is_claimed_injected_and_reported_alike(server: LiveServer) -> None:
    facts = [f"Box {number} holds {server.words(4 + number, seed=number)}." for number in range(8)]
    await server.remember("k", *facts)
    for k in (1, 2, 3, 5, 8, 20):
        memory = {"mode": "kv", "k": k}
        answer = await server.send(server.body("k", "What does box 3 hold?", memory))
        assert len(answer.told["facts"]) == min(k, 8) and answer.told["reason"] == "encoded"
        assert answer.told["injected_tokens"] == answer.cached
        assert answer.told["injected_tokens"] == header_tokens(server) + answer.told["memory_tokens"]


async def test_a_user_without_memory_is_served_without(server: LiveServer) -> None:
    answer = await server.chat("nobody-knows", "Say hello.")
    assert (answer.told["mode"], answer.told["reason"], answer.told["facts"]) == ("off", "nothing_remembered", [])
    assert answer.told["injected_tokens"] == answer.cached == 0


async def test_C3_a_user_of_whose_facts_none_is_near_enough_is_served_without(server: LiveServer) -> None:
    await server.remember("far", "Omar keeps three goats.")
    without = await server.chat(None, "How many planets are there?")
    for mode in ("kv", "text"):
        body = server.body("far", "How many planets are there?", {"mode": mode, "min_score": 1.0})
        answer = await server.send(body)
        assert (answer.told["mode"], answer.told["reason"]) == ("off", "nothing_remembered")
        assert (answer.told["injected_tokens"], answer.told["memory_tokens"], answer.told["facts"]) == (0, 0, [])
        assert answer.prompt_ids == without.prompt_ids
        assert_same(answer, without)
