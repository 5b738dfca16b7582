"""The only file that knows httpx: sends requests, repeats failed tries, translates foreign errors.

Two shells, sync and async, around the same pure decisions. Each send repeats only until the response headers of a
success have come, so never after the first streamed byte.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import httpx

from inferscale_sdk._config import ClientConfig
from inferscale_sdk._errors import APIConnectionError, APIError, APITimeoutError, error_from_reply
from inferscale_sdk._reply import RawResponse, Reply
from inferscale_sdk._request import Call, Request
from inferscale_sdk._retry import retry_delay_s

T = TypeVar("T")
HttpClient = httpx.Client
AsyncHttpClient = httpx.AsyncClient
Timeout = httpx.Timeout

CONNECT_TIMEOUT_S = 5.0
NOT_SERVING = "; is `inferscale serve` running, and ready?"
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20)

logger = logging.getLogger("inferscale_sdk")


@dataclass(frozen=True, slots=True)
class Transport:
    """Sends for the sync client; may be used by many threads at once. Closes `http` only if it made it."""

    http: httpx.Client
    config: ClientConfig
    owns_http: bool = False
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def build(cls, config: ClientConfig, http: httpx.Client | None) -> Transport:
        """Around the given `http`, or one of its own. No network."""
        return cls(http, config) if http is not None else cls(httpx.Client(limits=LIMITS), config, owns_http=True)

    def call(self, call: Call[T]) -> T:
        """The parsed answer. Raises APIError."""
        return call.parse(_reply(self._send(call.request)))

    def call_raw(self, call: Call[T]) -> RawResponse[T]:
        """The answer, not parsed yet. Raises APIError for an error status."""
        return RawResponse(_reply(self._send(call.request)), call.parse)

    def open(self, request: Request) -> ByteStream:
        """The answer's bytes as they come. Raises APIError."""
        return ByteStream(self._send(request, stream=True))

    def close(self) -> None:
        """Close the connections, if they are this client's own."""
        if self.owns_http:
            self.http.close()

    def _send(self, request: Request, *, stream: bool = False) -> httpx.Response:
        for tries in itertools.count():
            try:
                return self._send_once(request, stream)
            except APIError as error:
                delay_s = _delay_or_raise(error, request, tries, self.config)
            self.sleep(delay_s)
        raise AssertionError("unreachable: count() does not end")

    def _send_once(self, request: Request, stream: bool) -> httpx.Response:
        with _translated():
            response = self.http.send(_build(self.http, request, self.config), stream=stream)
            if stream and not response.is_success:
                response.read()
        return _checked(response, request)


@dataclass(frozen=True, slots=True)
class AsyncTransport:
    """Sends for the async client. Closes `http` only if it made it."""

    http: httpx.AsyncClient
    config: ClientConfig
    owns_http: bool = False
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    @classmethod
    def build(cls, config: ClientConfig, http: httpx.AsyncClient | None) -> AsyncTransport:
        """Around the given `http`, or one of its own. No network."""
        return cls(http, config) if http is not None else cls(httpx.AsyncClient(limits=LIMITS), config, owns_http=True)

    async def call(self, call: Call[T]) -> T:
        """The parsed answer. Raises APIError."""
        return call.parse(_reply(await self._send(call.request)))

    async def call_raw(self, call: Call[T]) -> RawResponse[T]:
        """The answer, not parsed yet. Raises APIError for an error status."""
        return RawResponse(_reply(await self._send(call.request)), call.parse)

    async def open(self, request: Request) -> AsyncByteStream:
        """The answer's bytes as they come. Raises APIError."""
        return AsyncByteStream(await self._send(request, stream=True))

    async def close(self) -> None:
        """Close the connections, if they are this client's own."""
        if self.owns_http:
            await self.http.aclose()

    async def _send(self, request: Request, *, stream: bool = False) -> httpx.Response:
        for tries in itertools.count():
            try:
                return await self._send_once(request, stream)
            except APIError as error:
                delay_s = _delay_or_raise(error, request, tries, self.config)
            await self.sleep(delay_s)
        raise AssertionError("unreachable: count() does not end")

    async def _send_once(self, request: Request, stream: bool) -> httpx.Response:
        with _translated():
            response = await self.http.send(_build(self.http, request, self.config), stream=stream)
            if stream and not response.is_success:
                await response.aread()
        return _checked(response, request)


@dataclass(frozen=True, slots=True)
class ByteStream:
    """The body of an open response."""

    response: httpx.Response

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return _request_id(self.response)

    def pieces(self) -> Iterator[bytes]:
        """Bytes as they come. Raises APIConnectionError."""
        with _translated():
            yield from self.response.iter_bytes()

    def close(self) -> None:
        """Drop the connection; the server stops generating."""
        self.response.close()


@dataclass(frozen=True, slots=True)
class AsyncByteStream:
    """The body of an open response."""

    response: httpx.Response

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return _request_id(self.response)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Bytes as they come. Raises APIConnectionError."""
        with _translated():
            async for piece in self.response.aiter_bytes():
                yield piece

    async def close(self) -> None:
        """Drop the connection; the server stops generating."""
        await self.response.aclose()


AnyTransport = TypeVar("AnyTransport", Transport, AsyncTransport)


def with_options(transport: AnyTransport, *, timeout: float | Timeout | None, max_retries: int | None) -> AnyTransport:
    """A copy over the same connections, which it does not own. None keeps what was set. Raises as ClientConfig."""
    config = transport.config
    changed = replace(
        config,
        timeout=config.timeout if timeout is None else timeout,
        max_retries=config.max_retries if max_retries is None else max_retries,
    )
    return replace(transport, config=changed, owns_http=False)


def _build(http: httpx.Client | httpx.AsyncClient, request: Request, config: ClientConfig) -> httpx.Request:
    return http.build_request(
        request.method,
        config.base_url + request.path,
        params=dict(request.params) or None,
        headers={**config.headers(), **request.headers},
        content=request.body,
        timeout=_timeout(request, config),
    )


def _timeout(request: Request, config: ClientConfig) -> httpx.Timeout:
    wanted = request.timeout or config.timeout or request.default_timeout_s
    if isinstance(wanted, httpx.Timeout):
        return wanted
    return httpx.Timeout(wanted, connect=min(wanted, CONNECT_TIMEOUT_S))


def _waited(error: httpx.TimeoutException) -> str:
    """How long was waited, in words: each kind of timeout (connect, read, write, pool) has a limit of its own."""
    limits = {} if error._request is None else error._request.extensions.get("timeout", {})
    seconds = limits.get(type(error).__name__.removesuffix("Timeout").lower())
    return "in time" if seconds is None else f"within {seconds:g} s"


def _reply(response: httpx.Response) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status_code, headers, response.content)


def _request_id(response: httpx.Response) -> str | None:
    found: str | None = response.headers.get("x-request-id")
    return found


def _checked(response: httpx.Response, request: Request) -> httpx.Response:
    status, request_id = response.status_code, _request_id(response)
    logger.debug("%s %s: status %d, request %s", request.method, request.route, status, request_id)
    if not response.is_success:
        raise error_from_reply(_reply(response))
    return response


def _delay_or_raise(error: APIError, request: Request, tries: int, config: ClientConfig) -> float:
    delay_s = retry_delay_s(error, tries, config.max_retries, time.time(), random.random())
    if delay_s is None:
        raise error
    kind = type(error).__name__
    logger.info("%s %s: %s, trying again in %.2f s", request.method, request.route, kind, delay_s)
    return delay_s


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise APITimeoutError(f"no answer {_waited(error)} ({type(error).__name__})") from error
    except httpx.HTTPError as error:
        where = f" to {error.request.url.copy_with(path='/', query=None)}" if error._request is not None else ""
        hint = NOT_SERVING if isinstance(error, httpx.ConnectError) else ""
        raise APIConnectionError(f"connection failed{where}: {str(error) or type(error).__name__}{hint}") from error
