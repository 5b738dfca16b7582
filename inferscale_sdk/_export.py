"""A user's facts as the server streams them: thin shells, sync and async, that pull bytes through a LineFeed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from inferscale_sdk._memory_models import Fact
from inferscale_sdk._transfer import LineFeed, parse_line
from inferscale_sdk._transport import AsyncByteStream, ByteStream


class FactExport:
    """The facts of an export, oldest first; iterate once. Closes itself at the end.

    Iterating raises APIConnectionError when the connection breaks before the last fact; nothing is repeated.
    """

    def __init__(self, body: ByteStream) -> None:
        self._body = body
        self._facts = self._pull()

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self._body.request_id

    def close(self) -> None:
        """Stop. Closing twice is fine."""
        self._body.close()

    def __iter__(self) -> Iterator[Fact]:
        return self._facts

    def __enter__(self) -> FactExport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pull(self) -> Iterator[Fact]:
        feed = LineFeed()
        try:
            for piece in self._body.pieces():
                for line in feed.push(piece):
                    yield parse_line(line, self.request_id)
            feed.close()
        finally:
            self.close()


class AsyncFactExport:
    """The facts of an export, oldest first; iterate once. Closes itself at the end.

    Iterating raises APIConnectionError when the connection breaks before the last fact; nothing is repeated.
    """

    def __init__(self, body: AsyncByteStream) -> None:
        self._body = body
        self._facts = self._pull()

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self._body.request_id

    async def close(self) -> None:
        """Stop. Closing twice is fine."""
        await self._body.close()

    def __aiter__(self) -> AsyncIterator[Fact]:
        return self._facts

    async def __aenter__(self) -> AsyncFactExport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _pull(self) -> AsyncIterator[Fact]:
        feed = LineFeed()
        try:
            async for piece in self._body.pieces():
                for line in feed.push(piece):
                    yield parse_line(line, self.request_id)
            feed.close()
        finally:
            await self.close()
