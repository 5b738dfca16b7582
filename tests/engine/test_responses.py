"""Memory on `/v1/responses`: the same plan, KV and provenance as a chat's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .live import LiveServer

QUESTION = "What is the name of my dog?"


def body(user: str | None, mode: str = "kv", **more: Any) -> dict[str, Any]:
    """A greedy request of 12 tokens."""
    named = {} if user is None else {"inferscale": {"user_id": user, "memory": {"mode": mode}}}
    return {"input": QUESTION, "max_output_tokens": 12, "temperature": 0, **named, **more}


async def ask(server: LiveServer, body: dict[str, Any]) -> dict[str, Any]:
    answer = await server.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def events(server: LiveServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await server.client.post("/v1/responses", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_response_is_injected_and_says_what_the_same_chat_says(server: LiveServer) -> None:
    ids = await server.remember("rita", "My dog is called Bruno.", "I live in Oslo.")
    chat = await server.chat_encoded("rita", QUESTION, max_tokens=12)
    response = await ask(server, body("rita"))
    told = response["inferscale"]
    assert told["mode"] == "kv" and {fact["id"] for fact in told["facts"]} == ids
    assert told["injected_tokens"] == chat.told["injected_tokens"] > 0
    assert text_of(response) == chat.text
    assert "kv_transfer_params" not in response and response["status"] in ("completed", "incomplete")
    as_text = (await ask(server, body("rita", "text")))["inferscale"]
    assert (as_text["mode"], as_text["injected_tokens"]) == ("text", 0)


async def test_a_stream_says_the_same_and_ends_with_provenance(server: LiveServer) -> None:
    await server.remember("stella", "My dog is called Bruno.")
    await server.chat_encoded("stella", QUESTION)
    whole = await ask(server, body("stella"))
    got = await events(server, body("stella"))
    assert "".join(one["delta"] for one in got if one["type"] == "response.output_text.delta") == text_of(whole)
    assert [one["sequence_number"] for one in got] == list(range(len(got)))
    told = got[-1]["response"]["inferscale"]
    assert told["mode"] == "kv" and told["injected_tokens"] == whole["inferscale"]["injected_tokens"] > 0
    assert told["timings_ms"]["ttft"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_an_injection_that_fails_goes_once_more_as_text(server: LiveServer, stream: bool) -> None:
    user = f"faulty {stream}"
    await server.remember(user, "My dog is called Bruno.")
    await server.chat_encoded(user, QUESTION)
    await server.forget_prefixes()
    server.rogue("load")
    response = (await events(server, body(user)))[-1]["response"] if stream else await ask(server, body(user))
    told = response["inferscale"]
    assert (told["mode"], told["reason"], told["injected_tokens"]) == ("text", "load_failed", 0)
    assert text_of(response)


async def test_instructions_and_a_system_message_keep_their_place_before_the_memory(server: LiveServer) -> None:
    await server.remember("iris", "My dog is called Bruno.")
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    by_input = await ask(server, body("iris", input=said))
    by_field = await ask(server, body("iris", instructions="Be brief."))
    assert by_input["usage"]["input_tokens"] == by_field["usage"]["input_tokens"]
    assert by_input["inferscale"]["facts"] == by_field["inferscale"]["facts"] != []


async def test_without_a_user_there_is_no_memory(server: LiveServer) -> None:
    told = (await ask(server, body(None)))["inferscale"]
    assert (told["mode"], told["reason"], told["facts"]) == ("off", "no_user", [])


async def test_a_turn_of_a_response_is_queued_when_asked_for(server: LiveServer) -> None:
    named = {"user_id": "keeper", "memory": {"remember": True}}
    request = body(None, input="My cat is called Tom.") | {"inferscale": named}
    assert (await ask(server, request))["inferscale"]["remember"] == "queued"
    assert (await events(server, request))[-1]["response"]["inferscale"]["remember"] == "queued"
    await server.brain.backlog.drain()


@pytest.mark.parametrize("field", [{"previous_response_id": "resp_1"}, {"background": True}])
async def test_what_needs_stored_responses_is_refused(server: LiveServer, field: dict[str, Any]) -> None:
    answer = await server.client.post("/v1/responses", json=body("rita", **field))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported", next(iter(field)))


async def test_no_response_can_be_fetched_by_its_id(server: LiveServer) -> None:
    response = await ask(server, body("rita"))
    assert (await server.client.get(f"/v1/responses/{response['id']}")).status_code == 404


async def test_S2_two_users_share_no_cached_token(server: LiveServer) -> None:
    for user in ("twin one", "twin two"):
        await server.remember(user, "My dog is called Bruno.")
    asked = body("twin one", "text", instructions="Answer in one short sentence and never say more than that. " * 8)
    await ask(server, asked)
    other = await ask(server, asked | {"inferscale": {"user_id": "twin two", "memory": {"mode": "text"}}})
    assert other["usage"]["input_tokens_details"]["cached_tokens"] == 0


async def test_a_session_keeps_its_memory_block_from_turn_to_turn(server: LiveServer) -> None:
    ids = await server.remember("sessile", "My dog is called Bruno.", "I live in Oslo.")
    named = {"user_id": "sessile", "session_id": "monday", "memory": {"mode": "kv"}}
    request = body(None, instructions="Be brief.") | {"inferscale": named}
    first = await ask(server, request)
    assert first["inferscale"]["session"]["state"] == "begun"
    asked, then = ({"role": "user", "content": text} for text in (QUESTION, "And where do I live?"))
    said = [asked, *first["output"], then]
    for later in (await ask(server, request | {"input": said}), (await events(server, request | {"input": said}))[-1]):
        told = later.get("response", later)["inferscale"]
        assert told["mode"] == "kv" and told["session"]["state"] == "kept"
        assert set(told["session"]["block"]) == ids and told["session"]["noted"] == []
        assert told["injected_tokens"] == first["inferscale"]["injected_tokens"] > 0


async def test_a_fact_that_comes_up_later_in_a_session_is_noted(server: LiveServer) -> None:
    await server.remember("noting", "My dog is called Bruno.")
    named = {"user_id": "noting", "session_id": "monday", "memory": {"mode": "kv"}}
    request = body(None, instructions="Never guess. " * 40) | {"inferscale": named}
    said = [{"role": "user", "content": QUESTION + " Please be thorough." * 40}]
    await ask(server, request | {"input": said})
    parrot = await server.remember("noting", "The parrot says hello.")
    said += [{"role": "assistant", "content": "Bruno."}, {"role": "user", "content": "What does the parrot say?"}]
    told = (await ask(server, request | {"input": said}))["inferscale"]
    assert told["session"]["state"] == "kept" and set(told["session"]["noted"]) == parrot
    assert parrot < {fact["id"] for fact in told["facts"]}
