"""`with_raw_response`: the methods of memories and users with headers and status instead of the parsed result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from inferscale_sdk import _memory_calls, _transfer
from inferscale_sdk._reply import RawResponse
from inferscale_sdk._request import Call
from inferscale_sdk._transport import AsyncTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")


class MemoriesWithRawResponse:
    """The methods of `client.memories`, each returning a RawResponse; one request a call: `list` gives a page."""

    def __init__(self, transport: Transport) -> None:
        self.add = _raw(transport, _memory_calls.add)
        self.search = _raw(transport, _memory_calls.search)
        self.list = _raw(transport, _memory_calls.list_page)
        self.get = _raw(transport, _memory_calls.get)
        self.update = _raw(transport, _memory_calls.update)
        self.history = _raw(transport, _memory_calls.history)
        self.delete = _raw(transport, _memory_calls.delete)
        self.delete_all = _raw(transport, _memory_calls.delete_all)
        self.export = _raw(transport, _transfer.export)
        self.import_ = _raw(transport, _transfer.import_)


class AsyncMemoriesWithRawResponse:
    """The methods of `client.memories`, each returning a RawResponse; one request a call: `list` gives a page."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.add = _async_raw(transport, _memory_calls.add)
        self.search = _async_raw(transport, _memory_calls.search)
        self.list = _async_raw(transport, _memory_calls.list_page)
        self.get = _async_raw(transport, _memory_calls.get)
        self.update = _async_raw(transport, _memory_calls.update)
        self.history = _async_raw(transport, _memory_calls.history)
        self.delete = _async_raw(transport, _memory_calls.delete)
        self.delete_all = _async_raw(transport, _memory_calls.delete_all)
        self.export = _async_raw(transport, _transfer.export)
        self.import_ = _async_raw(transport, _transfer.import_)


class UsersWithRawResponse:
    """The methods of `client.users`, each returning a RawResponse; `list` gives one page."""

    def __init__(self, transport: Transport) -> None:
        self.list = _raw(transport, _memory_calls.users_page)


class AsyncUsersWithRawResponse:
    """The methods of `client.users`, each returning a RawResponse; `list` gives one page."""

    def __init__(self, transport: AsyncTransport) -> None:
        self.list = _async_raw(transport, _memory_calls.users_page)


def _raw(transport: Transport, build: Callable[P, Call[T]]) -> Callable[P, RawResponse[T]]:
    @wraps(build)
    def send(*args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
        return transport.call_raw(build(*args, **kwargs))

    return send


def _async_raw(transport: AsyncTransport, build: Callable[P, Call[T]]) -> Callable[P, Awaitable[RawResponse[T]]]:
    @wraps(build)
    async def send(*args: P.args, **kwargs: P.kwargs) -> RawResponse[T]:
        return await transport.call_raw(build(*args, **kwargs))

    return send
