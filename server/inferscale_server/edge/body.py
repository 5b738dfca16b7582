"""The body of a POST: read whole, checked, and given to the app again.

Knows: ASGI's `receive`, sizes, content types. Refuses to know: routes, and fields other than the refused ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from inferscale_server.edge.json_body import JsonObject, parse_object
from inferscale_server.edge.refused import refuse_fields
from inferscale_server.edge.schemas import check_schemas
from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.limits import MAX_BODY_BYTES

PARSE_IN_THREAD_BYTES = 256 * 1024
"""Bodies above this are parsed in a thread: tens of milliseconds would stall every stream of the loop."""

DISCARD_BYTES = 16 * MAX_BODY_BYTES
DISCARD_SECONDS = 1.0
DISCARD_IDLE_SECONDS = 0.5
"""How much of a refused body is read on, and how long a pause in it is waited for. A client cut off while it sends sees
a reset connection, not the answer; one that sends nothing is answered at once."""


class IncomingBody:
    """A `receive` that knows whether all of the body has come."""

    def __init__(self, receive: Receive) -> None:
        self.complete = False
        self._receive = receive

    async def receive(self) -> Message:
        """The next message, as the server gives it."""
        message = await self._receive()
        self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def discard_rest(self) -> None:
        """Read on without keeping anything, to the end of the body, a pause in it, or the end of what is discarded."""
        discarded = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self.complete and discarded < DISCARD_BYTES:
                    async with asyncio.timeout(DISCARD_IDLE_SECONDS):
                        discarded += len((await self.receive()).get("body", b""))


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A body as it came, and the JSON object in it."""

    content: bytes
    fields: JsonObject


async def read_json_body(scope: Scope, receive: Receive) -> JsonBody:
    """The body, when it is a JSON object of at most MAX_BODY_BYTES without refused fields, whose schemas can be served.

    Raises InvalidRequest, TooLarge, and ClientDisconnect when the client left before it had sent all of it.
    """
    _check_content_type(scope)
    _check_declared_length(scope)
    content = await _read_whole(receive)
    fields = await load_object(content)
    refuse_fields(fields)
    check_schemas(fields)
    return JsonBody(content, fields)


async def load_object(content: bytes) -> JsonObject:
    """`json_body.parse_object` that does not stall the loop. Raises InvalidRequest."""
    if len(content) > PARSE_IN_THREAD_BYTES:
        return await asyncio.to_thread(parse_object, content)
    return parse_object(content)


def replay(content: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the buffered body once, then whatever the server says next (`http.disconnect`)."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": content, "more_body": False}

    return replayed


def header_values(scope: Scope, wanted: bytes) -> Iterator[bytes]:
    """Every value of the header `wanted` (lower case)."""
    return (value for name, value in scope["headers"] if name.lower() == wanted)


def _check_content_type(scope: Scope) -> None:
    sent = list(header_values(scope, b"content-type"))
    if len(sent) != 1 or not _is_json(sent[0].decode("latin-1")):
        raise InvalidRequest("the content-type must be application/json", code="invalid_content_type")
    if any(value.strip().lower() != b"identity" for value in header_values(scope, b"content-encoding")):
        raise InvalidRequest("compressed bodies are not read", code="invalid_content_encoding")


def _is_json(content_type: str) -> bool:
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    charsets = [value.strip('"') for key, _, value in (p.partition("=") for p in parameters) if key == "charset"]
    return media_type == "application/json" and all(charset in {"utf-8", "utf8"} for charset in charsets)


def _check_declared_length(scope: Scope) -> None:
    for declared in header_values(scope, b"content-length"):
        if not declared.isdigit():
            raise InvalidRequest("the content-length is not a number", code="invalid_content_length")
        if len(declared) > len(str(MAX_BODY_BYTES)) + 8 or int(declared) > MAX_BODY_BYTES:
            raise _too_large()


async def _read_whole(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            raise _too_large()
        more = message.get("more_body", False)
    return b"".join(chunks)


def _too_large() -> TooLarge:
    return TooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes", code="body_too_large")
