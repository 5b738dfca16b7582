"""The operator's routes: backup, verify, gc and reindex of the server that holds the data folder, and scoring.

Knows: who may call them (the role admin, from this machine). Refuses to know: how they work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from inferscale_server.cleanup import TOMBSTONE_DAYS
from inferscale_server.config import LOOPBACK
from inferscale_server.edge.auth import host_of, is_local
from inferscale_server.edge.body import load_object
from inferscale_server.edge.identity import identity_of
from inferscale_server.edge.query import owner_of
from inferscale_server.edge.routes import MemoryRoute
from inferscale_server.edge.scoring import ScoreAsk, Scorer, ScoreWire
from inferscale_server.edge.wire import Wire, parse_body
from inferscale_server.errors import Forbidden, InvalidRequest, RequestError, StoreCorrupt, Unavailable
from inferscale_server.upkeep import Upkeep
from inferscale_server.verify import show_verdict

PREFIX = "/v1/inferscale/admin"
MAX_PATH_CHARS = 4_096
PROXIED = frozenset({"forwarded", "via", "x-real-ip"})
FORWARDED = "x-forwarded-"
"""Headers that say that a request was passed on."""


class BackUp(Wire):
    """Body of `POST …/backup`: a path on the server's machine; `force` replaces an older backup."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]
    force: bool = False


class Clean(Wire):
    """Body of `POST …/gc`."""

    tombstone_days: Annotated[float, Field(ge=0, le=36_500)] = TOMBSTONE_DAYS


class Reindex(Wire):
    """Body of `POST …/reindex`: what `--embedder` takes."""

    embedder: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS)]


class Nothing(Wire):
    """The body of a command without options."""


class Unsound(RequestError):
    """The server's own store does not check out: 500, since nothing that the caller could write would help."""

    default_code = "store_corrupt"


class AdminRoutes:
    """The handlers. `upkeep` and `scorer` are asked at each request: None until the server has started."""

    def __init__(self, upkeep: Callable[[], Upkeep | None], scorer: Callable[[], Scorer | None]) -> None:
        self._upkeep = upkeep
        self._scorer = scorer

    async def back_up(self, request: Request) -> Response:
        """POST …/backup: 200 once the file is on the disk. Raises Unsound for a store that does not check out."""
        upkeep = self._admitted(request)
        body = parse_body(BackUp, await load_object(await request.body()))
        try:
            written = await upkeep.back_up(_absolute(body.path), force=body.force)
        except StoreCorrupt as error:
            raise Unsound(str(error)) from error
        return JSONResponse({"path": str(written.path), "facts": written.facts, "bytes": written.bytes})

    async def verify(self, request: Request) -> Response:
        """POST …/verify: 200 also when something is wrong; `ok` says whether."""
        upkeep = self._admitted(request)
        parse_body(Nothing, await load_object(await request.body()))
        return JSONResponse(show_verdict(await upkeep.verify()))

    async def clean(self, request: Request) -> Response:
        """POST …/gc."""
        upkeep = self._admitted(request)
        body = parse_body(Clean, await load_object(await request.body()))
        return JSONResponse(asdict(await upkeep.clean(body.tombstone_days)))

    async def reindex(self, request: Request) -> Response:
        """POST …/reindex: 202, it goes on in the background."""
        upkeep = self._admitted(request)
        body = parse_body(Reindex, await load_object(await request.body()))
        return JSONResponse(asdict(await upkeep.reindex(body.embedder)), status_code=202)

    async def reindexing(self, request: Request) -> Response:
        """GET …/reindex: how far the last one is; `state` is "none" when there was none since the start."""
        progress = self._admitted(request).reindexing
        return JSONResponse({"state": "none"} if progress is None else asdict(progress))

    async def score(self, request: Request) -> Response:
        """POST …/score: log probabilities of given answers; see `bench accuracy`."""
        require_operator(request)
        scorer = self._scorer()
        if scorer is None:
            raise Unavailable("the server is starting", code="not_ready")
        body = parse_body(ScoreWire, await load_object(await request.body()))
        return JSONResponse((await scorer.score(ScoreAsk.of(body, owner_of(request, body.user_id)))).body())

    def _admitted(self, request: Request) -> Upkeep:
        require_operator(request)
        upkeep = self._upkeep()
        if upkeep is None:
            raise Unavailable("the server is starting", code="not_ready")
        return upkeep


def build_admin_router(
    upkeep: Callable[[], Upkeep | None], scorer: Callable[[], Scorer | None] = lambda: None
) -> APIRouter:
    """The routes named in `allowlist.ADMIN_ROUTES`; can be attached before there is anything behind them."""
    routes = AdminRoutes(upkeep, scorer)
    router = APIRouter(route_class=MemoryRoute, prefix=PREFIX)
    router.post("/backup")(routes.back_up)
    router.post("/verify")(routes.verify)
    router.post("/gc")(routes.clean)
    router.post("/reindex")(routes.reindex)
    router.get("/reindex")(routes.reindexing)
    router.post("/score")(routes.score)
    return router


def require_operator(request: Request) -> None:
    """Raise Forbidden unless the caller has the role admin and calls from this machine, by one of its own names.

    These routes act on the whole store and write files here, and a key speaks for one tenant only. What a proxy on
    this machine passes on comes from here too: it is known by the headers that proxies add.
    """
    identity_of(request).require("admin")
    if any(name in PROXIED or name.startswith(FORWARDED) for name in request.headers):
        raise Forbidden("admin routes are for the server's own machine, not through a proxy", code="not_local")
    if not (is_local(request.scope) and host_of(request.scope) in LOOPBACK):
        raise Forbidden("admin routes are for the server's own machine", code="not_local")


def _absolute(written: str) -> Path:
    path = Path(written)
    if "\0" in written or not path.is_absolute():
        raise InvalidRequest("path must be absolute: the server has a working folder of its own", param="path")
    return path
