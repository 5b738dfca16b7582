"""A server at the transport that speaks the contract: scripted answers, facts per user, and a record of every call."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import httpx

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient

Json = dict[str, Any]
KEY = "sk-secret-canary"


def say(text: str) -> Json:
    """An answer in words."""
    return {"role": "assistant", "content": text}


def call(name: str, /, **arguments: object) -> Json:
    """An answer that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "call-1", "function": function}]}


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    path: str
    body: Json
    headers: httpx.Headers


@dataclass
class ScriptedServer:
    """Answers chats from `replies`, or with all it knows of the user; writes from `outcomes`, or with `stored`.
    `broken` paths answer 500."""

    replies: deque[Json] = field(default_factory=deque)
    outcomes: deque[Json] = field(default_factory=deque)
    facts: dict[str, list[str]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)

    def client(self) -> InferScaleClient:
        """The real SDK over this server."""
        http = httpx.Client(transport=httpx.MockTransport(self.handle))
        return InferScaleClient(http_client=http, api_key=KEY, max_retries=0)

    def async_client(self) -> AsyncInferScaleClient:
        """The real SDK over this server."""
        http = httpx.AsyncClient(transport=httpx.MockTransport(self.handle))
        return AsyncInferScaleClient(http_client=http, api_key=KEY, max_retries=0)

    def bodies(self, path: str) -> list[Json]:
        """What was sent to one route, in order."""
        return [seen.body for seen in self.seen if seen.path == path]

    @property
    def chats(self) -> list[Json]:
        return self.bodies("/v1/chat/completions")

    @property
    def searches(self) -> list[Json]:
        return self.bodies("/v1/memories/search")

    @property
    def writes(self) -> list[Json]:
        return self.bodies("/v1/memories")

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One request."""
        body = json.loads(request.content)
        self.seen.append(Seen(request.url.path, body, request.headers))
        if request.url.path in self.broken:
            return httpx.Response(500, json={"error": {"message": "broken"}})
        if request.url.path == "/v1/memories":
            return httpx.Response(200, json=self._store(body))
        if request.url.path == "/v1/memories/search":
            hits = [{"id": text, "text": text, "score": 0.5} for text in self.facts.get(body["user_id"], [])]
            return httpx.Response(200, json={"data": hits})
        return self._chat(body)

    def _store(self, body: Json) -> Json:
        if self.outcomes:
            return self.outcomes.popleft()
        said = [message["content"] for message in body["messages"] if message["role"] == "user"]
        self.facts.setdefault(body["user_id"], []).extend(said)
        return {"results": [{"id": text, "text": text, "status": "stored"} for text in said]}

    def _chat(self, body: Json) -> httpx.Response:
        known = self.facts.get(body["inferscale"]["user_id"], [])
        message = self.replies.popleft() if self.replies else say(" ".join(known) or "I do not know.")
        told = {"mode": "kv", "facts": [{"id": text, "text": text, "score": 0.5} for text in known]}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return httpx.Response(200, json={"choices": [choice], "usage": usage, "inferscale": told})
        events = [{"choices": [{"index": 0, "delta": delta}]} for delta in _deltas(message)]
        events.append({"choices": [], "usage": usage, "inferscale": told})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"]))


def _deltas(message: Json) -> list[Json]:
    """The message in small pieces, as a model writes it."""
    pieces: list[Json] = [{"content": word} for word in (message["content"] or "").splitlines(keepends=True)]
    for tool_call in message.get("tool_calls", []):
        name, arguments = tool_call["function"]["name"], tool_call["function"]["arguments"]
        pieces.append({"tool_calls": [{"index": 0, "id": tool_call["id"], "function": {"name": name}}]})
        halves = (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :])
        pieces += [{"tool_calls": [{"index": 0, "function": {"arguments": half}}]} for half in halves]
    return pieces
