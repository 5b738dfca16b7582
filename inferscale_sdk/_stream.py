"""Streams of a chat: thin shells, sync and async, that pull bytes through a ChatFeed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from inferscale_sdk._chat_models import ChatChunk, ChatResponse
from inferscale_sdk._errors import APIConnectionError
from inferscale_sdk._feed import ChatFeed
from inferscale_sdk._transport import AsyncByteStream, ByteStream


class ChatStream:
    """The chunks of one answer; iterate once, over chunks or over `text_stream`. Closes itself at the end.

    Iterating raises APIConnectionError when the connection breaks or the answer is cut off, and the mapped APIError
    when the server reports one; nothing is retried, for part of the answer has been seen.
    """

    def __init__(self, body: ByteStream) -> None:
        self._body = body
        self._feed = ChatFeed(body.request_id)
        self._chunks = self._pull()

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self._feed.request_id

    @property
    def so_far(self) -> ChatResponse:
        """The answer as far as it has been read: text and tool calls may be cut off anywhere."""
        return self._feed.so_far()

    @property
    def text_stream(self) -> Iterator[str]:
        """The pieces of the first choice's text."""
        return (chunk.text for chunk in self._chunks if chunk.text)

    def get_final_response(self) -> ChatResponse:
        """The whole answer, with usage and memory; reads what is left of the stream. Raises as iterating does."""
        for _ in self._chunks:
            pass
        return self._feed.final()

    def close(self) -> None:
        """Stop: the server ends the generation. Closing twice is fine."""
        self._feed.closed = True
        self._body.close()

    def __iter__(self) -> Iterator[ChatChunk]:
        return self._chunks

    def __enter__(self) -> ChatStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pull(self) -> Iterator[ChatChunk]:
        if self._feed.over:
            return
        try:
            for piece in self._body.pieces():
                yield from self._feed.push(piece)
                if self._feed.over:
                    return
            self._feed.check_complete()
        except APIConnectionError:
            # Closing from another thread or task breaks the read that waits: that is the end, not a fault.
            if not self._feed.closed:
                raise
        finally:
            self.close()


class AsyncChatStream:
    """The chunks of one answer; iterate once, over chunks or over `text_stream`. Closes itself at the end.

    Iterating raises APIConnectionError when the connection breaks or the answer is cut off, and the mapped APIError
    when the server reports one; nothing is retried, for part of the answer has been seen.
    """

    def __init__(self, body: AsyncByteStream) -> None:
        self._body = body
        self._feed = ChatFeed(body.request_id)
        self._chunks = self._pull()

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self._feed.request_id

    @property
    def so_far(self) -> ChatResponse:
        """The answer as far as it has been read: text and tool calls may be cut off anywhere."""
        return self._feed.so_far()

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """The pieces of the first choice's text."""
        return (chunk.text async for chunk in self._chunks if chunk.text)

    async def get_final_response(self) -> ChatResponse:
        """The whole answer, with usage and memory; reads what is left of the stream. Raises as iterating does."""
        async for _ in self._chunks:
            pass
        return self._feed.final()

    async def close(self) -> None:
        """Stop: the server ends the generation. Closing twice is fine."""
        self._feed.closed = True
        await self._body.close()

    def __aiter__(self) -> AsyncIterator[ChatChunk]:
        return self._chunks

    async def __aenter__(self) -> AsyncChatStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _pull(self) -> AsyncIterator[ChatChunk]:
        if self._feed.over:
            return
        try:
            async for piece in self._body.pieces():
                for chunk in self._feed.push(piece):
                    yield chunk
                if self._feed.over:
                    return
            self._feed.check_complete()
        except APIConnectionError:
            # Closing from another thread or task breaks the read that waits: that is the end, not a fault.
            if not self._feed.closed:
                raise
        finally:
            await self.close()
