"""A way from threads to an app that lives in the tests' event loop: the memory writes from a thread of its own."""

from __future__ import annotations

import asyncio

import httpx

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient

URL = "http://localhost"


class LoopTransport(httpx.BaseTransport):
    """Sends a thread's requests through a client of the loop that runs now."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._loop = asyncio.get_running_loop()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop).result()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._http.request(request.method, request.url, content=request.content, headers=request.headers)
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def sync_client(http: httpx.AsyncClient) -> InferScaleClient:
    """For threads. Call it in the loop."""
    return InferScaleClient(http_client=httpx.Client(transport=LoopTransport(http)), base_url=URL)


def async_client(http: httpx.AsyncClient) -> AsyncInferScaleClient:
    """For the loop."""
    return AsyncInferScaleClient(http_client=http, base_url=URL)
