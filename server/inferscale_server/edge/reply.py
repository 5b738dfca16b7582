"""The way back to the client: the request id on every response, and every small error in our shape.

Knows: ASGI's `send`. Refuses to know: routes. A stream is never held: an answer is held only when it is an error and
says beforehand that it is small.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Send

from inferscale_server.edge.answers import reshape_error

MAX_HELD_BYTES = 64 * 1024
"""Errors above this pass as they are."""


class Reply:
    """Wraps `send` for one request. `started` says whether the response has begun, `status` what it said then."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id = request_id
        self.started = False
        self.status: int | None = None
        self._send = send
        self._held: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """See ASGI. An error's start is held until its body is there."""
        if message["type"] == "http.response.start":
            message = self._named(message)
            if _may_be_reshaped(message):
                self._held, self._body = message, b""
                return
        elif self._held is not None:
            await self._collect(self._held, message)
            return
        await self._forward(message)

    async def _forward(self, message: Message) -> None:
        self.started = True
        self.status = message.get("status", self.status)
        await self._send(message)

    def _named(self, message: Message) -> Message:
        headers = [(name, value) for name, value in message.get("headers", ()) if name.lower() != b"x-request-id"]
        return {**message, "headers": [*headers, (b"x-request-id", self.request_id.encode())]}

    async def _collect(self, start: Message, message: Message) -> None:
        self._body += message.get("body", b"")
        if message.get("more_body", False) and len(self._body) <= MAX_HELD_BYTES:
            return
        self._held = None
        shaped = None if message.get("more_body", False) else reshape_error(start["status"], self._body)
        if shaped is not None:
            start, self._body = _with_body(start, shaped.status, shaped.body), shaped.body
        await self._forward(start)
        await self._forward({**message, "body": self._body})


def _may_be_reshaped(start: Message) -> bool:
    if start["status"] < 400:
        return False
    headers = Headers(raw=start["headers"])
    length = headers.get("content-length", "")
    return "content-encoding" not in headers and length.isdigit() and int(length) <= MAX_HELD_BYTES


def _with_body(start: Message, status: int, body: bytes) -> Message:
    headers = MutableHeaders(raw=list(start["headers"]))
    headers["content-type"] = "application/json"
    headers["content-length"] = str(len(body))
    return {**start, "status": status, "headers": headers.raw}
