"""The outermost layer of the server: what a request must look like before any route, ours or vLLM's, sees it.

Knows: ASGI, the allow-list, keys and roles, limits on bodies, refused fields, request ids. Refuses to know: what a
route does. What needs a key is decided here, in front of all routes, so that no route can forget to ask.
Pure ASGI, because a `BaseHTTPMiddleware` hides disconnects from streaming routes and lets websockets pass.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from inferscale_server.edge.access_log import AccessLine
from inferscale_server.edge.allowlist import ALLOWED, METRICS, STREAMED, AllowedRoute, AllowList, MethodNotAllowed
from inferscale_server.edge.answers import error_response, unexpected_response
from inferscale_server.edge.auth import Access
from inferscale_server.edge.body import IncomingBody, header_values, read_json_body, replay
from inferscale_server.edge.identity import Identity, with_identity
from inferscale_server.edge.refused import refuse_header
from inferscale_server.edge.reply import Reply
from inferscale_server.errors import Forbidden, InvalidRequest, NotFound, RequestError
from inferscale_server.types import Owner

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BROKEN_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
WITH_BODY = frozenset({"POST", "PATCH", "PUT"})
"""Methods whose body is read, checked and given to the app again."""

OPEN = Access()
"""For an app that was given no Access: a test's, or one without a server around it."""

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class BrokenResponse(Exception):
    """The app failed after its response had begun: the connection is cut, there is no one left to answer.

    Stands in for the app's own exception, whose message may quote the request and would end in the server's log.
    """


class Guard:
    """ASGI middleware, installed as `--middleware inferscale_server.edge.guard.Guard`."""

    def __init__(self, app: ASGIApp, routes: AllowList = ALLOWED, access: Access | None = None) -> None:
        """Without `access`, the app's own is asked at each request (`app.state.access`): it comes after the guard."""
        self._app = app
        self._routes = routes
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._guard_http(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no websocket routes"})
        else:
            await self._app(scope, receive, send)

    async def _guard_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request, answer it, and leave a line."""
        request_id = _request_id(scope)
        answer = Reply(send, request_id)
        line = AccessLine(scope["method"], request_id)
        try:
            await self._answer(scope, receive, answer, line)
        finally:
            line.write(answer.status)

    async def _answer(self, scope: Scope, receive: Receive, answer: Reply, line: AccessLine) -> None:
        """Admit the request or say why not, run the app."""
        incoming = IncomingBody(receive)
        try:
            route = self._admit(scope)
            line.template = route.template
            scope = self._identified(route, _with_request_id(scope, answer.request_id))
            line.key_id = _key_id(scope)
            fields: Mapping[str, object] = {}
            if scope["method"] in WITH_BODY and route.template not in STREAMED:
                body = await read_json_body(scope, incoming.receive)
                fields, receive = body.fields, replay(body.content, receive)
            if route.template == METRICS:
                _freshen(scope)
            with self._access_of(scope).in_flight(_owners(route, scope, fields)):
                await self._run(route, scope, receive, answer)
        except ClientDisconnect:
            return
        except RequestError as error:
            await _refuse(error, scope, incoming, answer)

    def _admit(self, scope: Scope) -> AllowedRoute:
        _check_encoding(scope)
        route = self._routes.match(scope["method"], _route_path(scope))
        refuse_header(frozenset(name.lower() for name, _ in scope["headers"]))
        return route

    def _identified(self, route: AllowedRoute, scope: Scope) -> Scope:
        """The scope with its caller. A preflight request carries no key by design; `nothing` routes are probes."""
        needed = route.needs.get(scope["method"], "nothing")
        if needed == "nothing":
            return scope
        identity = self._access_of(scope).identify(scope)
        identity.require(needed)
        return with_identity(scope, identity)

    def _access_of(self, scope: Scope) -> Access:
        if self._access is not None:
            return self._access
        app = scope.get("app")
        access = OPEN if app is None else getattr(app.state, "access", OPEN)
        assert isinstance(access, Access), type(access)
        return access

    async def _run(self, route: AllowedRoute, scope: Scope, receive: Receive, answer: Reply) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except Exception as error:
            response = unexpected_response(error, scope["method"], route.template, answer.request_id)
            if answer.started:
                raise BrokenResponse(f"{type(error).__name__} in {route.template}") from None
            await response(scope, receive, answer.send)


async def _refuse(error: RequestError, scope: Scope, incoming: IncomingBody, answer: Reply) -> None:
    await incoming.discard_rest()
    response = error_response(error)
    if isinstance(error, MethodNotAllowed):
        response.headers["allow"] = ", ".join(sorted(error.allowed))
    if not incoming.complete:
        response.headers["connection"] = "close"
    await response(scope, incoming.receive, answer.send)


def _owners(route: AllowedRoute, scope: Scope, fields: Mapping[str, object]) -> list[Owner]:
    """Whoever the request names, wherever it does.

    Raises Forbidden for one that its caller may not name, and NotFound when the request is about one fact: whether
    there is such a fact is then not the caller's business either.
    """
    identity = scope.get("state", {}).get("identity")
    if not isinstance(identity, Identity):
        return []
    try:
        return [identity.owner(user) for user in _named_users(route, scope, fields)]
    except Forbidden:
        if "{fact_id}" in route.template:
            raise NotFound("no such fact", param="id") from None
        raise


def _named_users(route: AllowedRoute, scope: Scope, fields: Mapping[str, object]) -> Iterator[str]:
    extension = fields.get("inferscale")
    inner = extension.get("user_id") if isinstance(extension, Mapping) else None
    query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    named = [fields.get("user_id"), fields.get("user"), inner, route.user_in(_route_path(scope))]
    for user in (*named, *(value for name, value in query if name == "user_id")):
        if isinstance(user, str):
            yield user


def _key_id(scope: Scope) -> str | None:
    identity = scope.get("state", {}).get("identity")
    return identity.key_id if isinstance(identity, Identity) else None


def _freshen(scope: Scope) -> None:
    """Gauges are read as they are now, and not as they were at their last turn."""
    refresh = getattr(getattr(scope.get("app"), "state", None), "refresh_metrics", None)
    if refresh is not None:
        refresh()


def _request_id(scope: Scope) -> str:
    sent = [value.decode("latin-1") for value in header_values(scope, b"x-request-id")]
    if len(sent) == 1 and _REQUEST_ID.fullmatch(sent[0]):
        return sent[0]
    return uuid.uuid4().hex


def _with_request_id(scope: Scope, request_id: str) -> Scope:
    """A scope in which the app reads the same id that the client will get."""
    headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"x-request-id"]
    return {**scope, "headers": [*headers, (b"x-request-id", request_id.encode())]}


def _route_path(scope: Scope) -> str:
    """The path as Starlette's router will read it: without the root path that the server is mounted under."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if root and below.startswith("/") else path


def _check_encoding(scope: Scope) -> None:
    """Raise for a path or query whose percent encoding is broken, not UTF-8, or hides a control character."""
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    query = scope.get("query_string", b"")
    for part, raw in (("path", path), ("query", query)):
        decoded = unquote_to_bytes(raw)
        if _BROKEN_PERCENT.search(raw) or not _is_utf8(decoded):
            raise InvalidRequest(f"the {part} is not percent-encoded UTF-8", code="invalid_url")
        if _CONTROL.search(decoded):
            raise InvalidRequest(f"the {part} holds a control character", code="invalid_url")


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
