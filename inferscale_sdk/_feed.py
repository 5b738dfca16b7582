"""A chat stream without I/O: bytes in, chunks out, the whole answer at the end. Both shells feed it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from inferscale_sdk._accumulate import Accumulator
from inferscale_sdk._chat_models import ChatChunk, ChatResponse
from inferscale_sdk._errors import APIConnectionError, APIResponseValidationError, InferScaleError, error_from_event
from inferscale_sdk._sse import EventDecoder
from inferscale_sdk._wire import parse_object

END = "[DONE]"


class ChatFeed:
    """What has come of one stream so far. `done` from the end mark on; `closed` once the reader wants no more."""

    def __init__(self, request_id: str | None) -> None:
        self.request_id = request_id
        self.done = False
        self.closed = False
        self._decoder = EventDecoder()
        self._sum = Accumulator()

    @property
    def over(self) -> bool:
        """Whether to stop reading bytes."""
        return self.done or self.closed

    def push(self, piece: bytes) -> Iterator[ChatChunk]:
        """The chunks that `piece` completes. Raises the mapped error of an error event, after the chunks before it."""
        for event in self._decoder.push(piece):
            if event == END:
                self.done = True
                return
            yield self._read(event)

    def check_complete(self) -> None:
        """Call when the bytes end. Raises APIConnectionError if the end mark has not come: the answer is cut off."""
        if not self.done:
            raise APIConnectionError(f"the stream ended before {END}", request_id=self.request_id)

    def final(self) -> ChatResponse:
        """The whole answer. Raises InferScaleError while there is more to come."""
        if not self.done:
            raise InferScaleError("the stream was closed or failed before its end: there is no final response")
        return self.so_far()

    def so_far(self) -> ChatResponse:
        """The answer as far as it has come."""
        return parse_object(ChatResponse, self._sum.total(), self.request_id)

    def _read(self, event: str) -> ChatChunk:
        decoded = self._decode(event)
        if isinstance(decoded, dict) and decoded.get("error") is not None:
            raise error_from_event(decoded, self.request_id)
        chunk = parse_object(ChatChunk, decoded, self.request_id)
        self._sum.take(chunk.raw)
        return chunk

    def _decode(self, event: str) -> object:
        try:
            return json.loads(event)
        except ValueError as error:
            problem = "unexpected answer: a stream event that is not JSON"
            raise APIResponseValidationError(problem, request_id=self.request_id) from error
