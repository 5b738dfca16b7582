"""A raw ASGI client and an app that repeats what it got: for what an HTTP client is too polite to send."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FEW = settings(max_examples=50, deadline=None)
"""For property tests: enough to meet the shallow cases in each run, and no claim about time."""

JSON_TYPE = (b"content-type", b"application/json")


@dataclass
class EchoApp:
    """Answers 200 with the body it received; remembers scopes and bodies."""

    scopes: list[Scope] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive()).get("body", b""))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": self.bodies[-1]})


@dataclass
class RawAnswer:
    """What an ASGI app sent back."""

    messages: list[Message]

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def error(self) -> Mapping[str, object]:
        error: Mapping[str, object] = json.loads(self.body)["error"]
        return error


def http_scope(
    method: str = "POST",
    path: str = "/v1/memories",
    headers: Iterable[tuple[bytes, bytes]] = (JSON_TYPE,),
    raw_path: bytes | None = None,
    query: bytes = b"",
) -> Scope:
    """A request as uvicorn would describe it."""
    raw = path.encode("utf-8", "surrogatepass") if raw_path is None else raw_path
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": raw,
        "root_path": "",
        "query_string": query,
        "headers": list(headers),
    }


async def send_raw(app: ASGIApp, scope: Scope, *incoming: Message) -> RawAnswer:
    """Run one request; `incoming` are the messages that `receive` gives, then `http.disconnect`."""
    queue = list(incoming)
    sent: list[Message] = []

    async def receive() -> Message:
        return queue.pop(0) if queue else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return RawAnswer(sent)


async def post_raw(app: ASGIApp, body: bytes, path: str = "/v1/memories") -> RawAnswer:
    """POST `body` as JSON in one piece."""
    return await send_raw(app, http_scope(path=path), {"type": "http.request", "body": body, "more_body": False})
