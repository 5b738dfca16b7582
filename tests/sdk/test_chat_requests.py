"""What a chat sends, and what it refuses to send."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest

from inferscale_sdk import __version__

from .script import CHAT, answer, script


def sent(*args: Any, **options: Any) -> dict[str, object]:
    server = script(answer(json=CHAT))
    server.client().chat(*args, **options)
    return server.body


def test_the_smallest_chat_sends_one_message_and_the_user() -> None:
    assert sent("alice", "hi") == {
        "messages": [{"role": "user", "content": "hi"}],
        "inferscale": {"user_id": "alice"},
    }


def test_session_memory_and_model_are_sent_when_given() -> None:
    body = sent("alice", "hi", session_id="s1", memory={"mode": "text", "k": 3}, model="tiny")
    assert body["inferscale"] == {"user_id": "alice", "session_id": "s1", "memory": {"mode": "text", "k": 3}}
    assert body["model"] == "tiny"


def test_openai_fields_go_into_the_body_and_none_is_left_out() -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    body = sent("alice", "hi", temperature=0.0, tools=tools, seed=None)
    assert (body["temperature"], body["tools"]) == (0.0, tools)
    assert "seed" not in body


def test_extra_body_adds_fields_and_wins() -> None:
    body = sent("alice", "hi", temperature=0.5, extra_body={"top_k": 4, "temperature": 1})
    assert (body["top_k"], body["temperature"]) == (4, 1)


def test_messages_are_sent_as_they_are() -> None:
    messages = [{"role": "system", "content": "short"}, {"role": "user", "content": "hi ☺"}]
    assert sent("alice", messages=messages)["messages"] == messages


def test_a_stream_asks_for_usage_unless_told_otherwise() -> None:
    server = script(answer(json={}))
    client = server.client()
    client.chat("alice", "hi", stream=True).close()
    assert (server.body["stream"], server.body["stream_options"]) == (True, {"include_usage": True})
    assert server.headers["accept"] == "text/event-stream"
    client.chat("alice", "hi", stream=True, stream_options={"include_usage": False}).close()
    assert server.body["stream_options"] == {"include_usage": False}


def test_the_shard_header_is_the_hash_of_the_user_alone() -> None:
    server = script(answer(json=CHAT))
    server.client().chat("alice", "hi")
    assert server.headers["x-inferscale-shard"] == hashlib.sha256(b"inferscale-shard|alice").hexdigest()[:32]


def test_the_user_agent_names_the_version_and_extra_headers_win() -> None:
    server = script(answer(json=CHAT))
    server.client().chat("alice", "hi", extra_headers={"X-Trace": "t1"})
    assert server.headers["user-agent"] == f"inferscale-sdk-python/{__version__}"
    assert server.headers["x-trace"] == "t1"


@pytest.mark.parametrize("user", ["", " ", " alice", "alice\n", "\talice"])
def test_a_user_that_is_empty_or_padded_is_a_value_error(user: str) -> None:
    server = script(answer(json=CHAT))
    client = server.client()
    for call in (
        lambda: client.chat(user, "hi"),
        lambda: client.for_user(user),
        lambda: client.footprint(user),
        lambda: client.memories.add(user, facts=["x"]),
        lambda: client.memories.search(user, "x"),
        lambda: client.memories.list(user),
        lambda: client.memories.get("f1", user),
        lambda: client.memories.delete("f1", user),
        lambda: client.memories.delete_all(user),
    ):
        with pytest.raises(ValueError, match="user"):
            call()
    assert server.requests == []


@pytest.mark.parametrize("user", [None, 7, b"alice", ["alice"]])
def test_a_user_that_is_no_text_is_a_type_error(user: Any) -> None:
    with pytest.raises(TypeError, match="user must be a str"):
        sent(user, "hi")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "exactly one"),
        ({}, "first argument of client.chat is the user"),
        ({"query": "hi", "messages": [{"role": "user", "content": "hi"}]}, "exactly one"),
        ({"messages": []}, "messages must not be empty"),
        ({"query": "hi", "session_id": ""}, "session_id"),
        ({"query": "hi", "extra_body": {"inferscale": {}}}, "inferscale"),
        ({"query": "hi", "extra_body": {"user": "bob"}}, "user"),
        ({"query": "hi", "temperature": float("nan")}, "JSON"),
        ({"query": "\ud800"}, "surrogates"),
    ],
)
def test_what_cannot_be_meant_is_a_value_error(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        sent("alice", **options)


@pytest.mark.parametrize(
    ("memory", "problem"),
    [
        ({"mode": "xx"}, "memory['mode']='xx': must be one of auto, kv, text, off"),
        ({"kk": 3}, "memory['kk']: no such option; there are mode, k, "),
        ({"k": 0}, "memory['k']=0: must be at least 1"),
    ],
)
def test_options_of_memory_that_do_not_exist_are_refused_before_anything_is_sent(
    memory: dict[str, Any], problem: str
) -> None:
    server = script(answer(json=CHAT))
    with pytest.raises(ValueError, match=re.escape(problem)):
        server.client().chat("alice", "hi", memory=memory)  # type: ignore[call-overload]
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"query": [{"role": "user", "content": "hi"}]}, "pass a list as messages"),
        ({"messages": "hi"}, "messages must be a list"),
        ({"query": "hi", "memory": "kv"}, "memory must be a dict"),
        ({"query": "hi", "temprature": 1}, "temprature"),
    ],
)
def test_a_wrong_or_unknown_argument_is_a_type_error(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        sent("alice", **options)


def test_an_answer_tells_how_memory_served_it() -> None:
    answered = script(answer(json=CHAT)).client().chat("alice", "hi")
    assert (answered.text, answered.mode, answered.reason, answered.finish_reason) == (
        "Bruno",
        "kv",
        "enough_tokens",
        "stop",
    )
    assert (answered.injected_tokens, answered.prefilled_tokens) == (9, 5)
    assert answered.kv_source["device"] == 9
    assert answered.footprint == {"device": 900, "host": 0, "disk": 450}
    assert answered.timings_ms == {"embed": 1.5, "search": 0.1, "plan": 0.2, "ttft": 12.0}
    assert [(fact.id, fact.score) for fact in answered.facts] == [("f1", 0.8)]
    assert answered.usage is not None and answered.usage.total_tokens == 8
    assert (answered.request_id, answered.raw) == ("req-1", CHAT)


def test_an_answer_of_a_plain_openai_server_is_understood_too() -> None:
    plain = {key: value for key, value in CHAT.items() if key != "inferscale"}
    answered = script(answer(json=plain | {"brand_new": 1})).client().chat("alice", "hi")
    assert (answered.mode, answered.facts, answered.injected_tokens) == (None, (), 0)
    assert answered.footprint == {}
    assert answered.model_extra == {"brand_new": 1}


def test_tool_calls_are_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    answered = (
        script(answer(json={"choices": [{"message": message, "finish_reason": "tool_calls"}]}))
        .client()
        .chat("alice", "hi")
    )
    assert answered.text == ""
    assert [(made.id, made.function.name, made.function.arguments) for made in answered.tool_calls] == [
        ("c1", "look", '{"a": 1}')
    ]
