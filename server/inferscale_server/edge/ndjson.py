"""NDJSON: bytes as they come, to numbered lines.

Knows: line ends and sizes. Refuses to know: what a line says. Holds one line at most: what is longer is not kept.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from inferscale_server.edge.body import IncomingBody, header_values
from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.limits import MAX_IMPORT_BYTES, MAX_IMPORT_LINE_BYTES

MEDIA_TYPE = "application/x-ndjson"
ACCEPTED = frozenset({MEDIA_TYPE, "application/ndjson", "application/jsonl"})


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end, counted from 1; `content` is None when it was longer than MAX_IMPORT_LINE_BYTES."""

    number: int
    content: bytes | None


class LineSplitter:
    """Cuts a stream at its line ends."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._too_long = False
        self._number = 0

    def push(self, piece: bytes) -> Iterator[Line]:
        """The lines that this piece completes. Take all of them before the next piece."""
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            self._keep(piece[start:end])
            yield self._take()
            start = end + 1
        self._keep(piece[start:])

    def close(self) -> Iterator[Line]:
        """The last line, when it had no end."""
        if self._rest or self._too_long:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        self._too_long = self._too_long or len(self._rest) + len(part) > MAX_IMPORT_LINE_BYTES
        if self._too_long:
            self._rest.clear()
        else:
            self._rest += part

    def _take(self) -> Line:
        self._number += 1
        line = Line(self._number, None if self._too_long else bytes(self._rest.rstrip(b"\r")))
        self._rest.clear()
        self._too_long = False
        return line


class IncomingLines:
    """The body of a request as pieces of bytes, at most MAX_IMPORT_BYTES of them."""

    def __init__(self, request: Request) -> None:
        self._scope = request.scope
        self._incoming = IncomingBody(request.receive)

    async def pieces(self) -> AsyncIterator[bytes]:
        """As they come. Raises InvalidRequest, TooLarge, and ClientDisconnect when the client left before the end."""
        _check_headers(self._scope)
        size = 0
        while not self._incoming.complete:
            message = await self._incoming.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece = message.get("body", b"")
            size += len(piece)
            if size > MAX_IMPORT_BYTES:
                raise _too_large()
            yield piece

    async def discard_rest(self) -> None:
        """Read on after a refusal, so that the client sees the answer and not a reset connection."""
        await self._incoming.discard_rest()


def _check_headers(scope: Scope) -> None:
    sent = [
        value.decode("latin-1").partition(";")[0].strip().lower() for value in header_values(scope, b"content-type")
    ]
    if len(sent) != 1 or sent[0] not in ACCEPTED:
        raise InvalidRequest(f"the content-type must be {MEDIA_TYPE}", code="invalid_content_type")
    for declared in header_values(scope, b"content-length"):
        if declared.isdigit() and int(declared[:20]) > MAX_IMPORT_BYTES:
            raise _too_large()


def _too_large() -> TooLarge:
    return TooLarge(f"an import is at most {MAX_IMPORT_BYTES} bytes: send it in parts", code="body_too_large")
