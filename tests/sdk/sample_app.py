"""A small server that speaks the contract, in memory: what the real one does, without vLLM or a disk."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PAGE = 2


class SampleServer:
    """Facts per user; search finds shared words; chat repeats the best fact."""

    def __init__(self) -> None:
        self.facts: dict[str, dict[str, str]] = {}
        self.answers: dict[str, object] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/memories", self.add, methods=["POST"]),
                Route("/v1/memories", self.page, methods=["GET"]),
                Route("/v1/memories", self.delete_all, methods=["DELETE"]),
                Route("/v1/memories/search", self.search, methods=["POST"]),
                Route("/v1/memories/{id}", self.get, methods=["GET"]),
                Route("/v1/memories/{id}", self.delete, methods=["DELETE"]),
                Route("/v1/users/{user_id}/footprint", self.footprint, methods=["GET"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/inferscale/status", self.status, methods=["GET"]),
                Route("/ready", self.status, methods=["GET"]),
            ]
        )

    async def add(self, request: Request) -> Response:
        key = request.headers["idempotency-key"]
        if key not in self.answers:
            body = await request.json()
            self.answers[key] = {"results": [self._store(body["user_id"], fact) for fact in body["facts"]]}
        return self._answer(self.answers[key])

    async def page(self, request: Request) -> Response:
        start = int(request.query_params.get("cursor", 0))
        facts = [{"id": id, "text": text} for id, text in self._of(request).items()]
        more = start + PAGE < len(facts)
        cursor = str(start + PAGE) if more else None
        return self._answer({"data": facts[start : start + PAGE], "next_cursor": cursor, "has_more": more})

    async def get(self, request: Request) -> Response:
        id = request.path_params["id"]
        if id not in self._of(request):
            return self._answer({"error": {"message": "no such fact", "code": "not_found"}}, 404)
        return self._answer({"id": id, "text": self._of(request)[id]})

    async def delete(self, request: Request) -> Response:
        self._of(request).pop(request.path_params["id"])
        return self._answer({"id": request.path_params["id"], "deleted": True})

    async def delete_all(self, request: Request) -> Response:
        count = len(self._of(request))
        self._of(request).clear()
        return self._answer({"deleted": count})

    async def search(self, request: Request) -> Response:
        body = await request.json()
        return self._answer({"data": self._find(body["user_id"], body["query"])[: body.get("k", 20)]})

    async def footprint(self, request: Request) -> Response:
        return self._answer({"facts": len(self.facts[request.path_params["user_id"]]), "bytes": {"device": 0}})

    async def status(self, request: Request) -> Response:
        return self._answer({"model": "sample", "gate": {"passed": True}})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        found = self._find(body["inferscale"]["user_id"], body["messages"][-1]["content"])
        text = found[0]["text"] if found else "I do not know."
        memory = {"mode": "text", "facts": found}
        if body.get("stream"):
            return StreamingResponse(self._events(str(text), memory), media_type="text/event-stream")
        return self._answer({"choices": [{"message": {"content": text}}], "inferscale": memory})

    @staticmethod
    async def _events(text: str, memory: object) -> AsyncIterator[str]:
        for word in text.split(" "):
            yield f"data: {json.dumps({'choices': [{'delta': {'content': word + ' '}}]})}\n\n"
        yield f"data: {json.dumps({'choices': [], 'inferscale': memory})}\n\ndata: [DONE]\n\n"

    def _of(self, request: Request) -> dict[str, str]:
        return self.facts.setdefault(request.query_params["user_id"], {})

    def _store(self, user: str, text: str) -> object:
        id = uuid.uuid4().hex
        self.facts.setdefault(user, {})[id] = text
        return {"id": id, "text": text, "status": "stored"}

    def _find(self, user: str, query: str) -> list[dict[str, object]]:
        words = set(query.lower().split())
        facts = self.facts.get(user, {})
        hits = [(len(words & set(text.lower().split())), id, text) for id, text in facts.items()]
        return [{"id": id, "text": text, "score": shared / 10} for shared, id, text in sorted(hits)[::-1] if shared]

    @staticmethod
    def _answer(body: object, status: int = 200) -> Response:
        return JSONResponse(body, status, headers={"x-request-id": "sample-1"})
