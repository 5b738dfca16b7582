"""A scripted server at the transport: chats in OpenAI's shape, as our server gives them. No network, no model.

A plain question is answered with the asking user's canary; a schema or a forced tool with the smallest value that fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from langchain_inferscale import InferScaleChatModel

Json = dict[str, Any]
MODEL = "scripted"
INJECTED = 5


@dataclass(frozen=True)
class Refusal:
    """An error as the server words it."""

    status: int
    message: str

    def response(self) -> httpx.Response:
        described = {"message": self.message, "type": "t", "code": "c", "param": None}
        return httpx.Response(self.status, json={"error": described})


@dataclass
class ScriptedEngine:
    """Answers and remembers what it was sent; while `failure` is set, it answers that instead."""

    bodies: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[httpx.Headers] = field(default_factory=list)
    failure: Refusal | Exception | None = None

    def answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.bodies.append(body)
        self.paths.append(request.url.path)
        self.headers.append(request.headers)
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None:
            return self.failure.response()
        if request.url.path != "/v1/chat/completions":
            return httpx.Response(200, json={"results": []})
        told = completion(body)
        if not body.get("stream"):
            return httpx.Response(200, json=told, headers={"x-request-id": "req-1"})
        events = "".join(f"data: {json.dumps(event)}\n\n" for event in streamed(told)) + "data: [DONE]\n\n"
        return httpx.Response(200, text=events, headers={"x-request-id": "req-1", "content-type": "text/event-stream"})

    async def answer_async(self, request: httpx.Request) -> httpx.Response:
        return self.answer(request)

    @property
    def chats(self) -> list[Json]:
        return [body for body, path in zip(self.bodies, self.paths, strict=True) if path == "/v1/chat/completions"]

    @property
    def params(self) -> Json:
        """Constructor arguments that lead a model here."""
        return {
            "http_client": httpx.Client(transport=httpx.MockTransport(self.answer)),
            "http_async_client": httpx.AsyncClient(transport=httpx.MockTransport(self.answer_async)),
            "max_retries": 0,
        }

    def model(self, **options: Any) -> InferScaleChatModel:
        return InferScaleChatModel(**{**self.params, **options})


def canary(user: str) -> str:
    """What only this user's answers may hold."""
    return f"canary-of-{user}"


def completion(body: Json) -> Json:
    """The whole answer to one chat."""
    user = body["inferscale"]["user_id"]
    message = _said(body, user)
    prompt = sum(len(str(told.get("content")).split()) for told in body["messages"]) + INJECTED
    answer = len(json.dumps(message).split())
    return {
        "id": f"chat-{user}",
        "object": "chat.completion",
        "model": body.get("model") or MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": _why(message)}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
        "inferscale": {
            "mode": "kv",
            "reason": "enough_tokens",
            "facts": [{"id": "f1", "text": canary(user), "score": 0.9}],
            "injected_tokens": INJECTED,
            "prefilled_tokens": prompt - INJECTED,
            "kv_source": {"device": INJECTED, "host": 0, "disk": 0, "text": 0},
            "timings_ms": {"ttft": 1.5},
        },
    }


def streamed(told: Json) -> Iterator[Json]:
    """The same answer as chunks: role, pieces of text, pieces of tool calls, why it ended, usage."""
    head = {"id": told["id"], "object": "chat.completion.chunk", "model": told["model"]}
    [choice] = told["choices"]
    message = choice["message"]
    yield head | _delta({"role": "assistant", "content": ""})
    for piece in re.findall(r"\S+\s*", message["content"] or ""):
        yield head | _delta({"content": piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        name = {"index": index, "id": call["id"], "type": "function", "function": {"name": call["function"]["name"]}}
        yield head | _delta({"tool_calls": [name]})
        for piece in call["function"]["arguments"]:
            yield head | _delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield head | _delta({}, choice["finish_reason"])
    yield head | {"choices": [], "usage": told["usage"], "inferscale": told["inferscale"]}


def sample(schema: Mapping[str, Any], word: str) -> Any:
    """A value that fits a JSON schema; its strings are `word`."""
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], word)
    if schema.get("type") == "object" or "properties" in schema:
        return {name: sample(part, word) for name, part in schema.get("properties", {}).items()}
    return {"integer": 3, "number": 3.0, "boolean": True, "array": []}.get(schema.get("type", "string"), word)


def _said(body: Json, user: str) -> Json:
    tools, choice = body.get("tools") or [], body.get("tool_choice")
    last = body["messages"][-1]
    if tools and choice != "none" and (choice not in (None, "auto") or last["role"] == "user"):
        return {"role": "assistant", "content": None, "tool_calls": [_call(tools, choice, str(last["content"]))]}
    wanted = body.get("response_format")
    if wanted is not None:
        schema = wanted.get("json_schema", {}).get("schema")
        content = json.dumps(
            {"setup": "a", "punchline": "b"} if schema is None else sample(schema, str(last["content"]))
        )
    else:
        content = f"{canary(user)} hears you"
    for stop in body.get("stop") or ():
        content = content.split(stop)[0]
    return {"role": "assistant", "content": content}


def _call(tools: list[Json], choice: Any, word: str) -> Json:
    named = choice["function"]["name"] if isinstance(choice, dict) else tools[0]["function"]["name"]
    function = next(tool["function"] for tool in tools if tool["function"]["name"] == named)
    arguments = json.dumps(sample(function.get("parameters", {}), word), ensure_ascii=False)
    return {"id": "call-1", "type": "function", "function": {"name": named, "arguments": arguments}}


def _why(message: Json) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _delta(delta: Json, finish_reason: str | None = None) -> Json:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}
