"""The memory routes: from a request to a call of the memory service, and its result to JSON.

Knows: paths, query parameters, which owner a request speaks for. Refuses to know: how facts are kept, and what the
guard has checked already. Errors are answered here, so that the routes behave alike under any exception handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from inferscale_server.edge.answers import clip, error_response, unexpected_response
from inferscale_server.edge.body import load_object
from inferscale_server.edge.idempotency import OncePerKey
from inferscale_server.edge.services import Services
from inferscale_server.edge.shown import show_embeddings, show_fact, show_hit, show_outcome, show_page
from inferscale_server.edge.wire import AddMemories, EmbedTexts, SearchMemories, parse_body
from inferscale_server.errors import ExtractionUnavailable, InvalidRequest, RequestError, Unavailable
from inferscale_server.limits import DEFAULT_PAGE, MAX_PAGE
from inferscale_server.remember import drafts_from_facts, drafts_from_messages, parse_defaults, parse_user_id
from inferscale_server.types import LOCAL_TENANT, AddOutcome, FactDraft, Owner

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
        owner = _owner(body.user_id)
        drafts = _drafts(body)

        async def write() -> tuple[AddOutcome, ...]:
            outcomes = await self._started().memory.add(owner, drafts)
            return tuple(replace(outcome, text="") for outcome in outcomes)

        outcomes = await self._adds.run(owner, request.headers.get("idempotency-key"), content, write)
        said = (replace(outcome, text=draft.text) for outcome, draft in zip(outcomes, drafts, strict=True))
        return JSONResponse({"results": [show_outcome(outcome) for outcome in said]})

    async def search(self, request: Request) -> Response:
        """POST /v1/memories/search: best first."""
        body = parse_body(SearchMemories, await load_object(await request.body()))
        services = self._started()
        k = services.default_k if body.k is None else body.k
        hits = await services.memory.search(_owner(body.user_id), body.query, k, body.min_score)
        return JSONResponse({"data": [show_hit(hit) for hit in hits]})

    async def page(self, request: Request) -> Response:
        """GET /v1/memories: oldest first."""
        query = _query(request, {"user_id", "limit", "cursor"})
        page = await self._started().memory.page(_owner_in(query), _limit(query), query.get("cursor"))
        return JSONResponse(show_page(page))

    async def get(self, request: Request, fact_id: str) -> Response:
        """GET /v1/memories/{fact_id}."""
        owner = _owner_in(_query(request, {"user_id"}))
        return JSONResponse(show_fact(await self._started().memory.get(owner, fact_id)))

    async def delete(self, request: Request, fact_id: str) -> Response:
        """DELETE /v1/memories/{fact_id}: not recallable when this is answered."""
        owner = _owner_in(_query(request, {"user_id"}))
        await self._started().memory.delete(owner, fact_id)
        return JSONResponse({"id": fact_id, "deleted": True})

    async def delete_all(self, request: Request) -> Response:
        """DELETE /v1/memories: all of one user's; says how many."""
        owner = _owner_in(_query(request, {"user_id"}))
        return JSONResponse({"deleted": await self._started().memory.delete_owner(owner)})

    async def footprint(self, request: Request, user_id: str) -> Response:
        """GET /v1/users/{user_id}/footprint."""
        _query(request, set())
        footprint = await self._started().footprint(_owner(user_id))
        tiers = {
            "device": footprint.device_bytes,
            "host": footprint.host_bytes,
            "disk": footprint.disk_bytes,
            "facts": footprint.facts_bytes,
            "index": footprint.index_bytes,
        }
        shown = {"user_id": user_id, "facts": footprint.facts, "tokens": footprint.tokens, "bytes": tiers}
        return JSONResponse(shown)

    async def embed(self, request: Request) -> Response:
        """POST /v1/embeddings, in OpenAI's shape."""
        body = parse_body(EmbedTexts, await load_object(await request.body()))
        services = self._started()
        rows = await services.embed(body.input)
        return JSONResponse(show_embeddings(rows, services.embedder, body.encoding_format))

    async def ready(self, request: Request) -> Response:
        """GET /ready: 200, or 503 with the reason."""
        _query(request, set())
        reason = self._started().not_ready()
        if reason is not None:
            raise Unavailable(reason, code="not_ready")
        return JSONResponse({"ready": True})

    async def status(self, request: Request) -> Response:
        """GET /v1/inferscale/status."""
        _query(request, set())
        return JSONResponse(dict(self._started().status()))

    def _started(self) -> Services:
        services = self._services()
        if services is None:
            raise Unavailable("the server is starting", code="not_ready")
        return services


def build_router(services: Callable[[], Services | None]) -> APIRouter:
    """The routes named in `allowlist.MEMORY_ROUTES`; can be attached before there are services."""
    routes = MemoryRoutes(services)
    router = APIRouter(route_class=MemoryRoute)
    router.post("/v1/memories")(routes.add)
    router.get("/v1/memories")(routes.page)
    router.delete("/v1/memories")(routes.delete_all)
    router.post("/v1/memories/search")(routes.search)
    router.get("/v1/memories/{fact_id}")(routes.get)
    router.delete("/v1/memories/{fact_id}")(routes.delete)
    router.get("/v1/users/{user_id:path}/footprint")(routes.footprint)
    router.post("/v1/embeddings")(routes.embed)
    router.get("/ready")(routes.ready)
    router.get("/v1/inferscale/status")(routes.status)
    return router


def _drafts(body: AddMemories) -> Sequence[FactDraft]:
    if (body.facts is None) == (body.messages is None):
        raise InvalidRequest("give either facts or messages", param="facts" if body.messages is None else "messages")
    defaults = parse_defaults(body.session_id, body.timestamp, body.metadata)
    if body.facts is not None:
        return drafts_from_facts(body.facts, defaults)
    if body.infer:
        raise ExtractionUnavailable(
            "this server does not turn messages into facts: send facts, or infer=false to keep them as they are",
            param="infer",
        )
    return drafts_from_messages(body.messages, defaults)


def _query(request: Request, known: set[str]) -> Mapping[str, str]:
    """The query parameters. Raises InvalidRequest for an unknown or repeated one."""
    given = request.query_params.multi_items()
    for i, (name, _) in enumerate(given):
        if name not in known:
            raise InvalidRequest(f"unknown query parameter {clip(name)!r}", code="unknown_field", param=name)
        if name in dict(given[:i]):
            raise InvalidRequest(f"query parameter {name!r} stands twice", param=name)
    return dict(given)


def _owner_in(query: Mapping[str, str]) -> Owner:
    if "user_id" not in query:
        raise InvalidRequest("user_id is required", code="missing_field", param="user_id")
    return _owner(query["user_id"])


def _owner(user_id: str) -> Owner:
    return Owner(LOCAL_TENANT, parse_user_id(user_id))


def _limit(query: Mapping[str, str]) -> int:
    written = query.get("limit", str(DEFAULT_PAGE))
    number = int(written) if written.isascii() and written.isdigit() and len(written) <= 9 else 0
    if not 1 <= number <= MAX_PAGE:
        raise InvalidRequest(f"limit must be 1 to {MAX_PAGE}, not {clip(written)!r}", param="limit")
    return number
