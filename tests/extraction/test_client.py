"""Claims about the client's arguments for agents, runs and remembering."""

from __future__ import annotations

from typing import Any

import pytest

from inferscale_sdk import AddResult
from tests.sdk.script import answer, script

SCOPE = {"agent_id": "coach", "run_id": "r1"}
LISTED: dict[str, object] = {"data": [], "next_cursor": None, "has_more": False}
CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}


def test_the_scope_of_facts_is_sent_with_them() -> None:
    server = script(answer(json={"results": []}), answer(json={"data": []}))
    client = server.client()
    client.memories.add("alice", facts=["x", {"text": "y", "run_id": "r2"}], agent_id="coach")
    assert server.body == {"user_id": "alice", "agent_id": "coach", "facts": ["x", {"text": "y", "run_id": "r2"}]}
    client.memories.search("alice", "dog?", agent_id="coach", run_id="r1")
    assert server.body == {"user_id": "alice", "query": "dog?", **SCOPE}


def test_lists_and_deletes_name_their_scope_in_the_query() -> None:
    server = script(answer(json=LISTED), answer(json={"deleted": 2}))
    client = server.client()
    list(client.memories.list("alice", agent_id="coach", run_id="r1"))
    client.memories.delete_all("alice", run_id="r1")
    assert [dict(request.url.params) for request in server.requests] == [
        {"user_id": "alice", **SCOPE},
        {"user_id": "alice", "run_id": "r1"},
    ]


async def test_the_async_client_sends_the_same() -> None:
    server = script(answer(json={"data": []}), answer(json={"deleted": 0}))
    client = server.async_client()
    await client.memories.search("alice", "dog?", run_id="r1")
    await client.memories.delete_all("alice", agent_id="coach")
    assert [dict(request.url.params) for request in server.requests] == [{}, {"user_id": "alice", "agent_id": "coach"}]


def test_a_chat_names_its_scope_beside_the_user_and_says_that_it_is_remembered() -> None:
    server = script(answer(json={**CHAT, "inferscale": {"mode": "off", "remember": "queued"}}))
    memory: Any = {"remember": True}
    response = server.client().chat("alice", "hi", memory=memory, agent_id="coach", run_id="r1")
    assert server.body["inferscale"] == {"user_id": "alice", **SCOPE, "memory": {"remember": True}}
    assert "agent_id" not in server.body
    assert response.inferscale.remember == "queued"


@pytest.mark.parametrize("bad", ["", " r1"])
def test_a_bad_scope_is_refused_before_it_is_sent(bad: str) -> None:
    server = script(answer(json=LISTED))
    memories = server.client().memories
    with pytest.raises(ValueError, match="run_id"):
        memories.add("alice", facts=["x"], run_id=bad)
    with pytest.raises(ValueError, match="run_id"):
        memories.search("alice", "x", run_id=bad)
    with pytest.raises(ValueError, match="run_id"):
        memories.delete_all("alice", run_id=bad)
    assert server.requests == []


def test_what_was_superseded_is_not_among_the_ids_that_hold() -> None:
    outcomes = [
        {"id": "new", "text": "a", "status": "stored"},
        {"id": "old", "text": "b", "status": "superseded", "reason": "by new"},
    ]
    assert AddResult.model_validate({"results": outcomes}).ids == ("new",)
