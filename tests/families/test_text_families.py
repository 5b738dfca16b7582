"""Families whose keys cannot be moved, inside the real engine: memory is served as text, and the reason is told."""

from __future__ import annotations

import pytest

from tests.engine.live import LiveServer

pytestmark = pytest.mark.long
REASONS = ("ALiBi", "MLA")


@pytest.mark.parametrize("server", ["falcon-h1"], indirect=True, scope="module")
async def test_a_model_with_running_states_starts_and_says_that_memory_is_text(server: LiveServer) -> None:
    """No chat: on a CPU vLLM 0.32 fails in its own kernels for states (`mamba_mixer2.py`)."""
    await server.remember("alice", "The spare key lies under the third flower pot.")
    ready = (await server.client.get("/ready")).json()
    assert ready["memory"] == "text" and any("state" in reason for reason in ready["reasons"]), ready


@pytest.mark.parametrize("server", ["bloom", "deepseek"], indirect=True, scope="module")
async def test_memory_is_text_with_the_reason_and_the_engine_answers_on(server: LiveServer) -> None:
    await server.remember("alice", "The spare key lies under the third flower pot.")
    for mode in ("auto", "kv", "text"):
        for _ in range(2):  # the second one ends a request that hit the prefix cache, where there is one
            answer = await server.chat("alice", "Where is the key?", mode=mode)
            assert answer.told["mode"] == "text", answer.told
            assert [fact["text"] for fact in answer.told["facts"]] == ["The spare key lies under the third flower pot."]
            assert len(answer.tokens) > 0
    (refusal, *_) = server.brain.support.refusals
    assert any(reason in " ".join(server.brain.support.refusals) for reason in REASONS), refusal
