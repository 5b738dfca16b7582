"""The real guard, routes, memory and stores, and a chat route whose model is a function; OpenAI's shapes on the wire.

Of a chat, the parts that are ours are real: who asks, what is recalled, how it is refused. Only the answering is not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from inferscale_server.edge.answers import error_response
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.identity import identity_of
from inferscale_server.edge.services import Services
from inferscale_server.edge.wire import ChatMemory, parse_chat_memory
from inferscale_server.errors import RequestError
from inferscale_server.extraction.backlog import Waiting
from inferscale_server.extraction.build import backlog_of
from inferscale_server.extraction.turn import turns_in
from inferscale_server.remember import DraftDefaults, said_in
from inferscale_server.types import Hit
from tests.edge.conftest import app_with

Json = dict[str, Any]
MODEL = "scripted"
K = 5


def repeat(body: Json, texts: Sequence[str]) -> str:
    """Answers with what was recalled."""
    return " ".join(texts) or "I do not know."


@dataclass
class ChatApp:
    """`model` answers a body and the recalled texts; `bodies` are the chats that came."""

    model: Callable[[Json, Sequence[str]], str] = repeat
    bodies: list[Json] = field(default_factory=list)

    def over(self, services: Services) -> FastAPI:
        """The app around a started memory service."""
        app = app_with(services)

        async def chat(request: Request) -> Response:
            body = json.loads(await request.body())
            self.bodies.append(body)
            try:
                asked = parse_chat_memory(body, identity_of(request))
                recalled = await _recalled(services, body, asked)
                kept = {"remember": await _kept(services, body, asked)} if asked.remember else {}
                return self._answer(body, asked, recalled, kept)
            except RequestError as error:
                return error_response(error)

        app.post("/v1/chat/completions")(chat)
        app.add_middleware(Guard)
        return app

    def _answer(self, body: Json, asked: ChatMemory, hits: Sequence[Hit], kept: Json) -> Response:
        mode = "off" if asked.owner is None else "text"
        facts = [{"id": hit.fact.id, "text": hit.fact.text, "score": hit.score} for hit in hits]
        told = {"mode": mode, "reason": "no_user" if asked.owner is None else "asked", "facts": facts, **kept}
        text = self.model(body, [hit.fact.text for hit in hits])
        if body.get("stream"):
            return StreamingResponse(_events(body, text, told), media_type="text/event-stream")
        whole = {**_head("chat.completion"), "choices": [_choice(body, text)], "usage": _usage(text)}
        return JSONResponse({**whole, "inferscale": told})


async def _recalled(services: Services, body: Json, asked: ChatMemory) -> Sequence[Hit]:
    if asked.owner is None or asked.mode == "off":
        return ()
    return await services.memory.search(asked.owner, body["messages"][-1]["content"], asked.k or K, asked.min_score)


async def _kept(services: Services, body: Json, asked: ChatMemory) -> str:
    """What the real queue says of the question's turn; by the time of the answer it is remembered."""
    extraction, owner = services.extraction, asked.owner
    assert extraction is not None and owner is not None
    backlog = backlog_of(extraction, lambda result: None)
    [turn] = turns_in(said_in(body["messages"][-1:], DraftDefaults(time.time())), extraction.sources)
    queued = backlog.put(Waiting(owner, turn, services.memory.wipes(owner)))
    await backlog.drain()
    return queued


def _head(kind: str) -> Json:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": MODEL}


def _choice(body: Json, text: str) -> Json:
    message: Json = {"role": "assistant", "content": text}
    if isinstance(body.get("tool_choice"), Mapping):
        call = {"name": body["tool_choice"]["function"]["name"], "arguments": json.dumps({"said": text})}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call-1", "type": "function", "function": call}],
        }
    return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}


def _usage(text: str) -> Json:
    words = len(text.split())
    return {"prompt_tokens": 7, "completion_tokens": words, "total_tokens": 7 + words}


def _events(body: Json, text: str, told: Json) -> Iterator[str]:
    chunk = _head("chat.completion.chunk")
    for piece in text.split(" "):
        delta = {"role": "assistant", "content": f"{piece} "}
        yield _event({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    counted = bool((body.get("stream_options") or {}).get("include_usage"))
    yield _event(last if counted else {**last, "inferscale": told})
    if counted:
        yield _event({**chunk, "choices": [], "usage": _usage(text), "inferscale": told})
    yield "data: [DONE]\n\n"


def _event(chunk: Json) -> str:
    return f"data: {json.dumps(chunk)}\n\n"
