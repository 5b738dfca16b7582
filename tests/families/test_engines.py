"""C2 to C4 and the gate for each family: a tiny model with random weights, in float32, inside the real engine.

Gemma-3 stands for all in the ordinary run, since it has what the others have: hybrid layers, two rotations, QK-norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.engine.live import LiveServer, assert_same
from tests.engine.test_cache import fill

from .conftest import BLOCK
from .models import CORPUS, FAMILIES, POSITIONS

STORY = CORPUS[:180]
QUESTIONS = ["What is the name of the dog?", "How many goats are there?", "Which light, and how often?", "Say hello."]
ORDINARY = frozenset({"gemma3"})

families = pytest.mark.parametrize(
    "server",
    [pytest.param(name, marks=() if name in ORDINARY else pytest.mark.long) for name in FAMILIES],
    indirect=True,
    scope="module",
)


def context_of(server: LiveServer, tokens: int) -> str:
    """A text whose memory line is exactly `tokens` long."""
    from inferscale_server.wording import fact_line

    text = " ".join([CORPUS] * 3)
    for end in range(1, len(text)):
        if len(server.brain.tokenize(fact_line(text[:end]))) == tokens:
            return text[:end]
    raise AssertionError(f"no text of {tokens} tokens")


async def both(server: LiveServer, user: str, question: str, context: Sequence[str]) -> int:
    """Ask with injected and with prefilled memory, both cold: the same tokens? Returns how many were injected."""
    await server.forget_prefixes()
    kv = await server.chat(user, question, context=context)
    text = await server.chat(user, question, mode="text", context=context)
    assert kv.told["mode"] == "kv" and text.told["mode"] == "text" and kv.prompt_ids == text.prompt_ids
    assert kv.told["injected_tokens"] == kv.cached > 0 == text.cached
    assert_same(kv, text)
    return kv.cached


@families
async def test_the_gate_is_green_past_the_original_context(server: LiveServer) -> None:
    kv = (await server.client.get("/v1/inferscale/status")).json()["kv"]
    probes = {probe["name"]: probe["measured"] for probe in kv["gate"]["probes"]}
    print({name: f"{measured:.1g}" for name, measured in probes.items()})
    assert kv["enabled"] and kv["refusals"] == []
    farthest = max(int(name.split()[-1]) for name in probes if name.startswith("rotation at"))
    assert farthest > max(POSITIONS // 2, *(family.scaled_from for family in FAMILIES.values()))


@families
async def test_c2_one_chunk_that_holds_the_memory_answers_like_prefill(server: LiveServer) -> None:
    await server.chat_encoded("c2", QUESTIONS[0], context=[STORY])
    for question in QUESTIONS:
        assert await both(server, "c2", question, [STORY]) > len(server.brain.tokenize(STORY))


@families
async def test_c3_memory_that_ends_around_a_blocks_edge(server: LiveServer) -> None:
    header = len(server.catalog.get(server.brain.header_key).token_ids)
    for past_edge in (-1, 0, 1):
        memory = -header % BLOCK + BLOCK + past_edge
        context, user = [context_of(server, memory)], f"edge-{past_edge}"
        await server.chat_encoded(user, QUESTIONS[0], context=context, max_tokens=1)
        assert await both(server, user, QUESTIONS[0], context) == header + memory


@families
async def test_c4_a_poisoned_pool_does_not_reach_an_answer(server: LiveServer) -> None:
    clean = await server.chat_encoded("bleed", QUESTIONS[1], context=[STORY])
    await server.forget_prefixes()
    await server.in_workers(fill(1e4))
    try:
        poisoned = await server.chat("bleed", QUESTIONS[1], context=[STORY])
        assert poisoned.told["mode"] == "kv" and poisoned.cached == poisoned.told["injected_tokens"]
        assert_same(poisoned, clean)
    finally:
        await server.forget_prefixes()
        await server.in_workers(fill(0.0))
