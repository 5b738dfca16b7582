"""A scripted server at the transport: answers in order, remembers what it was sent. No network, no sleep."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import httpx

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient
from inferscale_sdk._config import ClientConfig
from inferscale_sdk._transport import AsyncTransport, Transport

Step = httpx.Response | Exception
Piece = bytes | Exception | Callable[[], bytes]


@dataclass
class Script:
    """Plays `steps` one a request; the last one again and again."""

    steps: Sequence[Step]
    requests: list[httpx.Request] = field(default_factory=list)
    naps_s: list[float] = field(default_factory=list)

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        step = self.steps[min(len(self.requests), len(self.steps)) - 1]
        if isinstance(step, Exception):
            raise step
        # A fresh copy: the client that gets a response makes it its own.
        if isinstance(step.stream, Pieces):
            return httpx.Response(step.status_code, headers=step.headers, stream=step.stream)
        return httpx.Response(step.status_code, headers=step.headers, content=step.content)

    @property
    def body(self) -> dict[str, object]:
        """The JSON of the last request."""
        decoded: dict[str, object] = json.loads(self.requests[-1].content)
        return decoded

    @property
    def headers(self) -> httpx.Headers:
        return self.requests[-1].headers

    def client(self, max_retries: int = 2, api_key: str | None = None) -> InferScaleClient:
        config = ClientConfig(api_key=api_key, max_retries=max_retries)
        http = httpx.Client(transport=httpx.MockTransport(self.answer))
        return InferScaleClient._over(Transport(http, config, sleep=self.naps_s.append))

    def async_client(self, max_retries: int = 2) -> AsyncInferScaleClient:
        async def nap(seconds: float) -> None:
            self.naps_s.append(seconds)

        http = httpx.AsyncClient(transport=httpx.MockTransport(self.answer))
        return AsyncInferScaleClient._over(AsyncTransport(http, ClientConfig(max_retries=max_retries), sleep=nap))


def script(*steps: Step) -> Script:
    return Script(steps)


def answer(status: int = 200, json: object = None, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, json={} if json is None else json, headers={"x-request-id": "req-1", **named})


def failure(status: int, message: str = "no", **headers: str) -> httpx.Response:
    return answer(status, {"error": {"message": message, "type": "t", "code": "c", "param": "p"}}, **headers)


CHAT = {
    "id": "chat-1",
    "model": "tiny",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Bruno"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    "inferscale": {
        "mode": "kv",
        "reason": "enough_tokens",
        "facts": [{"id": "f1", "text": "The dog is called Bruno.", "score": 0.8}],
        "injected_tokens": 9,
        "prefilled_tokens": 5,
        "kv_source": {"device": 9, "host": 0, "disk": 0, "text": 0},
        "footprint": {"device": 900, "host": 0, "disk": 450},
        "timings_ms": {"embed": 1.5, "search": 0.1, "plan": 0.2, "stage": None, "ttft": 12.0},
    },
}


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response body in pieces, some made on demand, some errors; counts how often it is closed."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.closed = 0
        self.read = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces:
            self.read += 1
            if isinstance(piece, Exception):
                raise piece
            yield piece if isinstance(piece, bytes) else piece()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def streamed(*pieces: Piece) -> httpx.Response:
    return httpx.Response(
        200, headers={"content-type": "text/event-stream", "x-request-id": "req-9"}, stream=Pieces(pieces)
    )


def event(payload: object) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {text}\n\n".encode()


def piece(text: str, finish: str | None = None) -> bytes:
    return event({"id": "chat-1", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


LAST = event({"id": "chat-1", "choices": [], "usage": CHAT["usage"], "inferscale": CHAT["inferscale"]})
DONE = event("[DONE]")
