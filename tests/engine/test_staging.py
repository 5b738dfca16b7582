"""Colder tiers in a real engine: what comes back from host memory or disk answers like what never left the slab."""

from __future__ import annotations

import statistics

import pytest

from inferscale_server.types import Owner

from .live import Answer, LiveServer, assert_same

QUESTION = "What does each of them keep in the cellar?"
FACTS = tuple(
    f"Neighbour number {number} keeps {thing} in the cellar and never tells anybody about it, not even on Sundays"
    for number, thing in enumerate(
        (
            "apples",
            "bicycles",
            "candles",
            "dolls",
            "eggs",
            "flags",
            "guitars",
            "hats",
            "irons",
            "jars",
            "kites",
            "lamps",
        )
    )
)


async def cool(server: LiveServer, user: str, tier: str) -> None:
    """The user's facts leave the slab; for the disk tier their copies in host memory leave too."""
    await server.encoded()
    host = server.brain.host
    assert host is not None
    while host.waiting or host._copying:
        await server.encoded()
    owner = Owner("local", user)
    server.catalog.drop_where(owner, lambda chunk: chunk.key.kind == "fact")
    if tier == "disk":
        host.catalog.drop_where(owner, lambda chunk: True)
    await server.brain.encoder.wipe()
    await server.forget_prefixes()


async def ask(server: LiveServer, user: str, mode: str = "kv") -> Answer:
    return await server.send(server.body(user, QUESTION, {"mode": mode, "k": len(FACTS)}))


@pytest.mark.parametrize("tier", ["host", "disk"])
async def test_cold_facts_are_staged_and_answer_like_warm_ones(
    server: LiveServer, tier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"cold-{tier}"
    await server.remember(user, *FACTS)
    warm = await ask(server, user)
    assert warm.told["kv_source"][tier] == 0 and warm.told["reason"] == "encoded"
    monkeypatch.setattr(server.brain.stager, "_deadline_s", 30.0)
    monkeypatch.setattr(server.brain.stager, "_text_s", lambda tokens: None)
    await cool(server, user, tier)
    cold = await ask(server, user)
    assert cold.told["reason"] == "encoded" and cold.told["kv_source"][tier] > 200
    assert cold.told["injected_tokens"] == warm.told["injected_tokens"]
    assert_same(cold, warm)
    again = await ask(server, user)
    assert again.told["kv_source"][tier] == 0


async def test_what_cannot_be_staged_in_time_is_served_as_text(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.remember("late", *FACTS)
    monkeypatch.setattr(server.brain.stager, "_deadline_s", 0.0)
    await cool(server, "late", "disk")
    answer = await ask(server, "late")
    assert answer.told["mode"] == "text" and answer.told["reason"] == "nothing_encoded"
    assert answer.told["kv_source"]["text"] == answer.told["memory_tokens"]


async def test_a_cold_chat_as_the_server_is_set_and_the_same_as_text(server: LiveServer) -> None:
    """Prints how long both take; what is asserted is that every cold chat was answered with all facts."""
    await server.remember("timed", *FACTS)
    took: dict[str, list[float]] = {"text": [], "host": [], "disk": []}
    for _ in range(5):
        for tier in took:
            await cool(server, "timed", "disk" if tier == "text" else tier)
            answer = await ask(server, "timed", "text" if tier == "text" else "kv")
            assert len(answer.owned_ids) == len(FACTS)
            timings = answer.told["timings_ms"]
            took[tier].append(sum(timings.get(part) or 0.0 for part in ("stage", "plan", "ttft")))
    print({tier: round(statistics.median(times), 1) for tier, times in took.items()}, server.brain.stager.results)
