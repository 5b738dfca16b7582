"""The routes that this server answers, vLLM's and ours, and who may call them; all others do not exist for a client.

Knows: methods, path templates and roles. Refuses to know: who serves them. vLLM registers many more routes, some of
which reach its engine past every check (`/invocations`), so a new route is unreachable until it is named here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from re import Pattern
from typing import Literal

from starlette.routing import compile_path

from inferscale_server.edge.identity import Role
from inferscale_server.errors import NotFound, RequestError

Needed = Role | Literal["nothing"]
"""What a caller needs; `nothing` is for probes that have no key."""
RouteTable = Mapping[str, Mapping[str, Needed]]
"""From path template to what each method needs."""

METRICS = "/metrics"
VLLM_ROUTES: RouteTable = {
    "/health": {"GET": "nothing"},
    METRICS: {"GET": "read"},
    "/version": {"GET": "read"},
    "/openapi.json": {"GET": "read"},
    "/docs": {"GET": "read"},
    "/v1/models": {"GET": "read"},
    "/v1/chat/completions": {"POST": "read"},
    "/v1/responses": {"POST": "read"},
    "/v1/completions": {"POST": "read"},
    "/tokenize": {"POST": "read"},
    "/detokenize": {"POST": "read"},
}
"""Routes that vLLM (or FastAPI) registers, the replaced chat route among them."""

MEMORY_ROUTES: RouteTable = {
    "/ready": {"GET": "nothing"},
    "/v1/inferscale/status": {"GET": "read"},
    "/v1/memories": {"GET": "read", "POST": "write", "DELETE": "write"},
    "/v1/memories/search": {"POST": "read"},
    "/v1/memories/export": {"GET": "read"},
    "/v1/memories/import": {"POST": "write"},
    "/v1/memories/{fact_id}": {"GET": "read", "PATCH": "write", "DELETE": "write"},
    "/v1/memories/{fact_id}/history": {"GET": "read"},
    "/v1/users": {"GET": "admin"},
    "/v1/users/{user_id:path}/footprint": {"GET": "read"},
    "/v1/embeddings": {"POST": "read"},
}
"""Routes of `routes.build_router`. A user id may hold a slash, hence `:path`."""

STREAMED = frozenset({"/v1/memories/import"})
"""Routes whose body is not one JSON object and may be larger than memory: they read and check it themselves."""

ADMIN_ROUTES: RouteTable = {
    "/v1/inferscale/admin/backup": {"POST": "admin"},
    "/v1/inferscale/admin/verify": {"POST": "admin"},
    "/v1/inferscale/admin/gc": {"POST": "admin"},
    "/v1/inferscale/admin/reindex": {"GET": "admin", "POST": "admin"},
    "/v1/inferscale/admin/score": {"POST": "admin"},
}
"""Routes of `admin.build_admin_router`."""


class MethodNotAllowed(RequestError):
    """The route exists, but not with this method."""

    status = 405
    type = "invalid_request_error"
    default_code = "method_not_allowed"

    def __init__(self, message: str, allowed: Iterable[str]) -> None:
        super().__init__(message)
        self.allowed = frozenset(allowed)


@dataclass(frozen=True, slots=True)
class AllowedRoute:
    """One path template, what its methods need, and the same regular expression that the router will use."""

    template: str
    needs: Mapping[str, Needed]
    pattern: Pattern[str]

    def user_in(self, path: str) -> str | None:
        """The user that `path` names, if the template has a place for one."""
        found = self.pattern.fullmatch(path)
        return None if found is None else found.groupdict().get("user_id")


class AllowList:
    """Routes in order of preference: those without parameters first."""

    def __init__(self, routes: RouteTable) -> None:
        ordered = sorted(routes.items(), key=lambda route: "{" in route[0])
        self._routes = tuple(_compile(ordered))

    def match(self, method: str, path: str) -> AllowedRoute:
        """The route that serves `method path`; OPTIONS passes wherever a path is listed (CORS).

        Raises NotFound for a path that is not listed and MethodNotAllowed for a listed one with another method.
        """
        for route in self._routes:
            if route.pattern.fullmatch(path):
                if method != "OPTIONS" and method not in route.needs:
                    raise MethodNotAllowed(f"{route.template} has no such method", route.needs)
                return route
        raise NotFound("no such route", code="route_not_found")


def _compile(routes: Iterable[tuple[str, Mapping[str, Needed]]]) -> Iterable[AllowedRoute]:
    for template, needs in routes:
        pattern, _, _ = compile_path(template)
        yield AllowedRoute(template, needs, pattern)


ALLOWED = AllowList({**VLLM_ROUTES, **MEMORY_ROUTES, **ADMIN_ROUTES})
