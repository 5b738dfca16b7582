"""Adds the chunks of a stream up to the answer that a request without `stream` would have got."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


class Accumulator:
    """Mutable sum of the chunks taken so far; `total()` may be asked at any time."""

    def __init__(self) -> None:
        self._top: Json = {}
        self._choices: dict[int, Json] = {}

    def take(self, chunk: Json) -> None:
        """Add one decoded chunk."""
        for key, value in chunk.items():
            if key == "choices":
                for choice in value:
                    self._take_choice(choice)
            elif value is not None:
                self._top[key] = value

    def total(self) -> Json:
        """The answer so far, in the shape of a chat completion."""
        choices = [self._closed(self._choices[index]) for index in sorted(self._choices)]
        return {**self._top, "object": "chat.completion", "choices": choices}

    def _take_choice(self, part: Json) -> None:
        index = part.get("index", 0)
        choice = self._choices.setdefault(index, {"index": index, "message": {"role": "assistant"}, "tools": {}})
        for key, value in part.items():
            if value is None or key == "index":
                continue
            if key == "delta":
                _take_delta(choice, value)
            elif key == "logprobs":
                _extend_lists(choice.setdefault("logprobs", {}), value)
            else:
                choice[key] = value

    @staticmethod
    def _closed(choice: Json) -> Json:
        tools = [choice["tools"][index] for index in sorted(choice["tools"])]
        message = {"content": None, **choice["message"]}
        if tools:
            message["tool_calls"] = tools
        kept = {key: value for key, value in choice.items() if key != "tools"}
        return {"finish_reason": None, **kept, "message": message}


def _take_delta(choice: Json, delta: Json) -> None:
    message = choice["message"]
    for key, value in delta.items():
        if key == "tool_calls":
            for call in value or ():
                _take_tool_call(choice["tools"], call)
        elif isinstance(value, str) and key != "role":
            # Content, refusal and reasoning all arrive in pieces.
            message[key] = message.get(key, "") + value
        elif value is not None:
            message[key] = value


def _take_tool_call(tools: dict[int, Json], part: Json) -> None:
    call = tools.setdefault(part.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}})
    for key in ("id", "type"):
        if part.get(key):
            call[key] = part[key]
    for key, value in (part.get("function") or {}).items():
        call["function"][key] = call["function"].get(key, "") + (value or "")


def _extend_lists(into: Json, more: Json) -> None:
    for key, value in more.items():
        if isinstance(value, list):
            into[key] = into.get(key, []) + value
