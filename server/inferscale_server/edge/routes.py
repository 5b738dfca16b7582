"""The memory routes: from a request to a call of the memory service, and its result to JSON.

Knows: paths, and which owner a request speaks for. Refuses to know: how facts are kept, and what the
guard has checked already. Errors are answered here, so that the routes behave alike under any exception handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from inferscale_server.edge.answers import clip, error_response, unexpected_response
from inferscale_server.edge.body import load_object
from inferscale_server.edge.idempotency import OncePerKey, parse_key
from inferscale_server.edge.inferred import add_inferred
from inferscale_server.edge.query import (
    filter_in,
    limit_in,
    owner_in,
    owner_of,
    owner_of_fact,
    query_of,
    scope_in,
    tenant_of,
)
from inferscale_server.edge.services import Services
from inferscale_server.edge.shown import (
    show_embeddings,
    show_fact,
    show_history,
    show_hit,
    show_outcome,
    show_page,
    show_users,
)
from inferscale_server.edge.transfer import TransferRoutes
from inferscale_server.edge.wire import AddMemories, EmbedTexts, SearchMemories, parse_body
from inferscale_server.errors import InvalidRequest, NotFound, RequestError, Unavailable
from inferscale_server.filters import within
from inferscale_server.nearest import unit_vector
from inferscale_server.remember import (
    DraftDefaults,
    drafts_from_facts,
    drafts_from_messages,
    parse_change,
    parse_defaults,
    parse_scope,
)
from inferscale_server.types import AddOutcome, FactDraft

DEFAULT_EMBEDDER = "default"
"""The model name that means whichever embedder the server has."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class MemoryRoute(APIRoute):
    """A route that answers its own errors."""

    def get_route_handler(self) -> Handler:
        """See APIRoute."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestError as error:
                return error_response(error)
            except ClientDisconnect:
                raise
            except Exception as error:  # vLLM's handlers would blame the client for our ValueError and quote it
                return unexpected_response(error, request.method, self.path, request.headers.get("x-request-id", "-"))

        return answer


class MemoryRoutes:
    """The handlers. `services` is asked at each request: None until the server has started."""

    def __init__(self, services: Callable[[], Services | None]) -> None:
        self._services = services
        self._adds: OncePerKey[tuple[AddOutcome, ...]] = OncePerKey()

    async def add(self, request: Request) -> Response:
        """POST /v1/memories: 200 only after the commit."""
        content = await request.body()
        body = parse_body(AddMemories, await load_object(content))
        owner = owner_of(request, body.user_id)
        name = parse_key(request.headers.get("idempotency-key"), content)
        if body.infer and body.facts is None and body.messages is not None:
            inferred = await add_inferred(self.started(), self._adds, owner, body.messages, _defaults(body), name)
            return JSONResponse({"results": [show_outcome(outcome) for outcome in inferred]})
        drafts, memory = _drafts(body), self.started().memory

        async def write() -> tuple[AddOutcome, ...]:
            outcomes = await memory.add(owner, drafts, name)
            return tuple(replace(outcome, text="") for outcome in outcomes)

        outcomes = await self._adds.run(owner, name, write, memory.wipes(owner))
        said = (replace(outcome, text=draft.text) for outcome, draft in zip(outcomes, drafts, strict=True))
        return JSONResponse({"results": [show_outcome(outcome) for outcome in said]})

    async def search(self, request: Request) -> Response:
        """POST /v1/memories/search: best first."""
        body = parse_body(SearchMemories, await load_object(await request.body()))
        services = self.started()
        k = services.default_k if body.k is None else body.k
        owner = owner_of(request, body.user_id)
        if (body.query is None) == (body.vector is None):
            raise InvalidRequest("give either query or vector", param="query" if body.vector is None else "vector")
        if body.query is not None:
            hits = await services.memory.search(owner, body.query, k, body.min_score, body.where())
        else:
            vector = unit_vector(body.vector or (), services.memory.embedder.dimension)
            hits = await services.memory.find(owner, vector, k, body.min_score, body.where())
        return JSONResponse({"data": [show_hit(hit) for hit in hits]})

    async def page(self, request: Request) -> Response:
        """GET /v1/memories: oldest first."""
        query = query_of(request, {"user_id", "agent_id", "run_id", "limit", "cursor", "filter"})
        owner, limit, where = owner_in(request, query), limit_in(query), filter_in(query)
        return JSONResponse(show_page(await self.started().memory.page(owner, limit, query.get("cursor"), where)))

    async def get(self, request: Request, fact_id: str) -> Response:
        """GET /v1/memories/{fact_id}."""
        owner = owner_of_fact(request, query_of(request, {"user_id"}), fact_id)
        return JSONResponse(show_fact(await self.started().memory.get(owner, fact_id)))

    async def history(self, request: Request, fact_id: str) -> Response:
        """GET /v1/memories/{fact_id}/history: of a deleted fact that it was, not what it said."""
        owner = owner_of_fact(request, query_of(request, {"user_id"}), fact_id)
        return JSONResponse(show_history(fact_id, await self.started().memory.history(owner, fact_id)))

    async def update(self, request: Request, fact_id: str) -> Response:
        """PATCH /v1/memories/{fact_id}: changes what the body names and nothing else."""
        owner = owner_of_fact(request, query_of(request, {"user_id"}), fact_id)
        change = parse_change(await load_object(await request.body()))
        return JSONResponse(show_fact(await self.started().memory.update(owner, fact_id, change)))

    async def delete(self, request: Request, fact_id: str) -> Response:
        """DELETE /v1/memories/{fact_id}: not recallable when this is answered."""
        owner = owner_of_fact(request, query_of(request, {"user_id"}), fact_id)
        await self.started().memory.delete(owner, fact_id)
        return JSONResponse({"id": fact_id, "deleted": True})

    async def delete_all(self, request: Request) -> Response:
        """DELETE /v1/memories: all of one user's, or those of an agent or a run; says how many."""
        query = query_of(request, {"user_id", "agent_id", "run_id"})
        owner, where, memory = owner_in(request, query), within(None, scope_in(query)), self.started().memory
        deleted = memory.delete_owner(owner) if where is None else memory.delete_matching(owner, where)
        return JSONResponse({"deleted": await deleted})

    async def users(self, request: Request) -> Response:
        """GET /v1/users: who has facts, and how many; for admins of the tenant."""
        query = query_of(request, {"limit", "cursor", "fact_id"})
        tenant, limit = tenant_of(request), limit_in(query)
        users = self.started().memory.users(tenant, limit, query.get("cursor"), query.get("fact_id"))
        return JSONResponse(show_users(await users))

    async def footprint(self, request: Request, user_id: str) -> Response:
        """GET /v1/users/{user_id}/footprint."""
        query_of(request, set())
        footprint = await self.started().footprint(owner_of(request, user_id))
        tiers = {
            "device": footprint.device_bytes,
            "host": footprint.host_bytes,
            "disk": footprint.disk_bytes,
            "facts": footprint.facts_bytes,
            "index": footprint.index_bytes,
        }
        counts = {name: getattr(footprint, name) for name in ("facts", "tokens", "encoded", "queued")}
        return JSONResponse({"user_id": user_id, **counts, "bytes": tiers})

    async def embed(self, request: Request) -> Response:
        """POST /v1/embeddings, in OpenAI's shape."""
        body = parse_body(EmbedTexts, await load_object(await request.body()))
        services = self.started()
        if body.model not in {None, DEFAULT_EMBEDDER, services.embedder, *services.embedder_options}:
            message = f"there is no embedding model {clip(body.model)!r} here: it is {services.embedder!r}"
            raise NotFound(message, code="model_not_found", param="model")
        rows = await services.embed(body.input)
        return JSONResponse(show_embeddings(rows, services.embedder, body.encoding_format))

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200, or 503 with the reason. Memory as text is ready too, and says so."""
        query_of(request, set())
        reason = self.started().not_ready()
        if reason is not None:
            raise Unavailable(reason, code="not_ready")
        reasons = self.started().text_reasons()
        return JSONResponse({"ready": True} | ({"memory": "text", "reasons": [*reasons]} if reasons else {}))

    async def status(self, request: Request) -> Response:
        """GET /v1/inferscale/status."""
        query_of(request, set())
        return JSONResponse(dict(self.started().status()))

    def started(self) -> Services:
        """The services. Raises Unavailable before there are any."""
        services = self._services()
        if services is None:
            raise Unavailable("the server is starting", code="not_ready")
        return services


def build_router(services: Callable[[], Services | None]) -> APIRouter:
    """The routes named in `allowlist.MEMORY_ROUTES`; can be attached before there are services."""
    routes = MemoryRoutes(services)
    transfer = TransferRoutes(routes.started)
    router = APIRouter(route_class=MemoryRoute)
    router.post("/v1/memories")(routes.add)
    router.get("/v1/memories")(routes.page)
    router.delete("/v1/memories")(routes.delete_all)
    router.post("/v1/memories/search")(routes.search)
    router.get("/v1/memories/export")(transfer.export)
    router.post("/v1/memories/import")(transfer.import_)
    router.get("/v1/memories/{fact_id}")(routes.get)
    router.patch("/v1/memories/{fact_id}")(routes.update)
    router.get("/v1/memories/{fact_id}/history")(routes.history)
    router.delete("/v1/memories/{fact_id}")(routes.delete)
    router.get("/v1/users")(routes.users)
    router.get("/v1/users/{user_id:path}/footprint")(routes.footprint)
    router.post("/v1/embeddings")(routes.embed)
    router.get("/ready")(routes.ready)
    router.get("/v1/inferscale/status")(routes.status)
    return router


def _drafts(body: AddMemories) -> Sequence[FactDraft]:
    if (body.facts is None) == (body.messages is None):
        raise InvalidRequest("give either facts or messages", param="facts" if body.messages is None else "messages")
    if body.facts is not None:
        return drafts_from_facts(body.facts, _defaults(body))
    return drafts_from_messages(body.messages, _defaults(body))


def _defaults(body: AddMemories) -> DraftDefaults:
    scope = parse_scope(body.agent_id, body.run_id)
    return parse_defaults(body.session_id, body.timestamp, body.metadata, body.expires_at, scope)
