"""The routes that this server answers, vLLM's and ours; all others do not exist for a client.

Knows: methods and path templates. Refuses to know: who serves them. vLLM registers many more routes, some of which
reach its engine past every check (`/invocations`), so a new route is unreachable until it is named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from re import Pattern

from starlette.routing import compile_path

from inferscale_server.errors import NotFound, RequestError

VLLM_ROUTES: Mapping[str, frozenset[str]] = {
    "/health": frozenset({"GET"}),
    "/metrics": frozenset({"GET"}),
    "/version": frozenset({"GET"}),
    "/openapi.json": frozenset({"GET"}),
    "/docs": frozenset({"GET"}),
    "/v1/models": frozenset({"GET"}),
    "/v1/chat/completions": frozenset({"POST"}),
    "/v1/completions": frozenset({"POST"}),
    "/tokenize": frozenset({"POST"}),
    "/detokenize": frozenset({"POST"}),
}
"""Routes that vLLM (or FastAPI) registers, the replaced chat route among them."""

MEMORY_ROUTES: Mapping[str, frozenset[str]] = {
    "/ready": frozenset({"GET"}),
    "/v1/inferscale/status": frozenset({"GET"}),
    "/v1/memories": frozenset({"GET", "POST", "DELETE"}),
    "/v1/memories/search": frozenset({"POST"}),
    "/v1/memories/{fact_id}": frozenset({"GET", "DELETE"}),
    "/v1/users/{user_id:path}/footprint": frozenset({"GET"}),
    "/v1/embeddings": frozenset({"POST"}),
}
"""Routes of `routes.build_router`. A user id may hold a slash, hence `:path`."""


class MethodNotAllowed(RequestError):
    """The route exists, but not with this method."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"

    def __init__(self, message: str, allowed: frozenset[str]) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class AllowedRoute:
    """One path template, its methods, and the same regular expression that the router will use."""

    template: str
    methods: frozenset[str]
    pattern: Pattern[str]


class AllowList:
    """Routes in order of preference: those without parameters first."""

    def __init__(self, routes: Mapping[str, frozenset[str]]) -> None:
        ordered = sorted(routes.items(), key=lambda route: "{" in route[0])
        self._routes = tuple(_compile(ordered))

    def match(self, method: str, path: str) -> AllowedRoute:
        """The route that serves `method path`; OPTIONS passes wherever a path is listed (CORS).

        Raises NotFound for a path that is not listed and MethodNotAllowed for a listed one with another method.
        """
        for route in self._routes:
            if route.pattern.fullmatch(path):
                if method != "OPTIONS" and method not in route.methods:
                    raise MethodNotAllowed(f"{route.template} has no such method", route.methods)
                return route
        raise NotFound("no such route", code="route_not_found")


def _compile(routes: Iterable[tuple[str, frozenset[str]]]) -> Iterable[AllowedRoute]:
    for template, methods in routes:
        pattern, _, _ = compile_path(template)
        yield AllowedRoute(template, methods, pattern)


ALLOWED = AllowList({**VLLM_ROUTES, **MEMORY_ROUTES})
