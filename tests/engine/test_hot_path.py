"""A hot chat on a real engine: what it asks of nobody, and what every chat says of where its time went."""

from __future__ import annotations

from typing import Any

import pytest

from .live import Answer, LiveServer
from .test_staging import FACTS, QUESTION, cool

STAGES = {"embed", "search", "plan", "stage", "ttft"}
TRIES = 3
"""The background asks the workers and sweeps the store now and then; it does not do so in each of three chats."""


async def test_a_hot_kv_chat_makes_no_rpc_and_no_sql_query(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.remember("hot", *FACTS)
    await server.chat_encoded("hot", QUESTION)
    rpc, connection = server.engine.collective_rpc, server.brain.memory._store._database._connection
    asked: list[str] = []

    async def watched(method: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(str(method))
        return await rpc(method, *args, **kwargs)

    monkeypatch.setattr(server.engine, "collective_rpc", watched)
    connection.set_trace_callback(asked.append)
    try:
        by_chat = []
        for _ in range(TRIES):
            await server.encoded()
            asked.clear()
            answer = await server.chat("hot", QUESTION)
            by_chat.append(list(asked))
            assert (answer.told["mode"], answer.told["reason"]) == ("kv", "encoded")
        assert [] in by_chat, by_chat
        await server.brain.engine_stats()
        await server.client.get("/v1/memories?user_id=hot")
        assert "inferscale_stats" in asked and any("SELECT" in one for one in asked), "nothing would have been seen"
    finally:
        connection.set_trace_callback(None)


async def ask(server: LiveServer, question: str, session: str | None = None, **memory: Any) -> Answer:
    """One chat about the facts of one user."""
    about = {"user_id": "timed-stages", "memory": {"mode": "kv", **memory}}
    about |= {} if session is None else {"session_id": session}
    return await server.send(server.body(None, question, {}, inferscale=about))


async def test_every_answer_says_where_its_time_went(server: LiveServer) -> None:
    await server.remember("timed-stages", *FACTS)
    plain, turn = await ask(server, "Who keeps apples?"), await ask(server, "Who keeps candles?", "s")
    kept, off = await ask(server, "Who keeps dolls?", "s"), await ask(server, "Who keeps eggs?", mode="off")
    nothing = await ask(server, "Who keeps kites?", min_score=0.999)
    alone = await ask(server, "Who keeps flags?", "another", min_score=0.999)
    nobody = await server.chat(None, "Who keeps hats?")
    for answer in (plain, turn, kept, off, nothing, alone, nobody):
        timings = answer.told["timings_ms"]
        assert set(timings) == STAGES and all(ms >= 0 for ms in timings.values()), answer.told
    for answer in (plain, turn, kept, nothing, alone):
        assert answer.told["timings_ms"]["embed"] > 0 and answer.told["timings_ms"]["search"] > 0
    assert {answer.told["reason"] for answer in (nothing, alone)} == {"nothing_remembered"}
    assert all(answer.told["timings_ms"]["plan"] > 0 for answer in (plain, turn, kept))


async def test_a_sessions_first_turn_says_how_long_it_waited_for_cold_facts(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.remember("timed-stages", *FACTS)
    await ask(server, QUESTION)
    monkeypatch.setattr(server.brain.stager, "_deadline_s", 30.0)
    monkeypatch.setattr(server.brain.stager, "_text_s", lambda tokens: None)
    await cool(server, "timed-stages", "host")
    cold = await ask(server, QUESTION, "cold")
    assert cold.told["kv_source"]["host"] > 0 and cold.told["timings_ms"]["stage"] > 0
    assert cold.told["timings_ms"]["plan"] < cold.told["timings_ms"]["ttft"]
