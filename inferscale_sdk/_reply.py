"""An answer of the server, free of any HTTP library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers (lower-case names) and whole body of one answer."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self.headers.get("x-request-id")


@dataclass(frozen=True, slots=True)
class RawResponse(Generic[T]):
    """A successful answer before it is parsed: what `with_raw_response` methods return."""

    reply: Reply
    _parse: Callable[[Reply], T]

    @property
    def status_code(self) -> int:
        """HTTP status, 2xx."""
        return self.reply.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers, names in lower case."""
        return self.reply.headers

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self.reply.request_id

    @property
    def content(self) -> bytes:
        """The body as it came."""
        return self.reply.body

    def parse(self) -> T:
        """What the plain method would have returned. Raises APIResponseValidationError."""
        return self._parse(self.reply)
