"""The outermost layer of the server: what a request must look like before any route, ours or vLLM's, sees it.

Knows: ASGI, the allow-list, limits on bodies, refused fields, request ids. Refuses to know: what a route does.
Pure ASGI, because a `BaseHTTPMiddleware` hides disconnects from streaming routes and lets websockets pass.
"""

from __future__ import annotations

import re
import uuid
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferscale_server.edge.allowlist import ALLOWED, AllowedRoute, AllowList, MethodNotAllowed
from inferscale_server.edge.answers import error_response, unexpected_response
from inferscale_server.edge.body import IncomingBody, header_values, read_json_body, replay
from inferscale_server.edge.refused import refuse_header
from inferscale_server.errors import InvalidRequest, RequestError

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_BROKEN_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")


class BrokenResponse(Exception):
    """The app failed after its response had begun: the connection is cut, there is no one left to answer.

    Stands in for the app's own exception, whose message may quote the request and would end in the server's log.
    """


class Guard:
    """ASGI middleware, installed as `--middleware inferscale_server.edge.guard.Guard`."""

    def __init__(self, app: ASGIApp, routes: AllowList = ALLOWED) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._guard_http(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "no websocket routes"})
        else:
            await self._app(scope, receive, send)

    async def _guard_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Name the request, admit it or say why not, run the app."""
        request_id = _request_id(scope)
        answer = _Answer(send, request_id)
        incoming = IncomingBody(receive)
        try:
            route = self._admit(scope)
            if scope["method"] == "POST":
                receive = replay(await read_json_body(scope, incoming.receive), receive)
        except ClientDisconnect:
            return
        except RequestError as error:
            await _refuse(error, scope, incoming, answer)
            return
        await self._run(route, _with_request_id(scope, request_id), receive, answer)

    def _admit(self, scope: Scope) -> AllowedRoute:
        _check_encoding(scope)
        route = self._routes.match(scope["method"], _route_path(scope))
        refuse_header(frozenset(name.lower() for name, _ in scope["headers"]))
        return route

    async def _run(self, route: AllowedRoute, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            return
        except Exception as error:
            response = unexpected_response(error, scope["method"], route.template, answer.request_id)
            if answer.started:
                raise BrokenResponse(f"{type(error).__name__} in {route.template}") from None
            await response(scope, receive, answer.send)


class _Answer:
    """The way back to the client: puts the request id on the response and knows whether it has begun."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.started = False
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"x-request-id"]
            message = {**message, "headers": [*headers, (b"x-request-id", self.request_id.encode())]}
        await self._send(message)


async def _refuse(error: RequestError, scope: Scope, incoming: IncomingBody, answer: _Answer) -> None:
    await incoming.discard_rest()
    response = error_response(error)
    if isinstance(error, MethodNotAllowed):
        response.headers["allow"] = ", ".join(sorted(error.allowed))
    if not incoming.complete:
        response.headers["connection"] = "close"
    await response(scope, incoming.receive, answer.send)


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
