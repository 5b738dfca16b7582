"""A session's notes in a request to `/v1/responses` stand before the words of the turns that they belong to."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from inferscale_server.engine.responses import messages_of, with_notes

SYSTEM = {"role": "system", "content": "Be brief."}
CALL: list[dict[str, Any]] = [
    {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "two goats"},
]
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Who keeps goats?"},
    {
        "type": "message",
        "id": "m",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    *CALL,
    {"role": "assistant", "content": "Ernest."},
    {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]},
]


def users(request: ResponsesRequest) -> dict[int, Any]:
    """What the user says, by place."""
    said = enumerate(messages_of(request))
    return {place: message["content"] for place, message in said if message["role"] == "user"}


@pytest.mark.parametrize("instructions", [None, "Be brief."])
@pytest.mark.parametrize("front", [[], [SYSTEM]])
def test_notes_stand_in_their_turns_whatever_comes_before_and_between(
    instructions: str | None, front: list[dict[str, Any]]
) -> None:
    request = ResponsesRequest(input=[*front, *TALK], instructions=instructions)
    first, last = users(request)
    noted = with_notes(request, {first: "A goat. ", last: "A barn. "})
    assert users(noted) == {first: "A goat. Who keeps goats?", last: "A barn. Where?"}
    only_last = with_notes(request, {last: "A barn. "})
    assert users(only_last) == {first: "Who keeps goats?", last: "A barn. Where?"}
    others = [message for message in messages_of(request) if message["role"] != "user"]
    assert [message for message in messages_of(noted) if message["role"] != "user"] == others


@pytest.mark.parametrize("instructions", [None, "Be brief."])
def test_one_text_is_a_turn_too(instructions: str | None) -> None:
    request = ResponsesRequest(input="Where?", instructions=instructions)
    [place] = users(request)
    assert users(with_notes(request, {place: "A barn. "})) == {place: "A barn. Where?"}
    assert with_notes(request, {}) == request
