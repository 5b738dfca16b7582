"""Requests under way when the server is told to stop: what is not done in time is ended, and its client is told.

Without this a stream would wait for tokens of an engine that is gone, and the server for the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from inferscale_server.edge.answers import error_response
from inferscale_server.errors import Unavailable

T = TypeVar("T")


class InFlight:
    """The chats that are being answered. One a server; used on the event loop only."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End them all, and whatever comes later."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()

    async def finish(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises Unavailable when the server stops first."""
        with self._stoppable():
            return await work

    async def relay(self, events: AsyncIterable[T]) -> AsyncGenerator[T | str, None]:
        """The same server-sent events; an error event and [DONE] when the server stops first. Closes `events`."""
        try:
            async with aclosing(aiter(events)) as inner:  # type: ignore[type-var]
                while True:
                    with self._stoppable():
                        try:
                            event = await anext(inner)
                        except StopAsyncIteration:
                            return
                    yield event
        except Unavailable as error:
            yield f"data: {bytes(error_response(error).body).decode()}\n\n"
            yield "data: [DONE]\n\n"

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        if self._stopped:
            raise _stopping()
        task = asyncio.current_task()
        assert task is not None, "not in a task"
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if not self._stopped:
                raise  # the client hung up
        finally:
            self._tasks.discard(task)
        if self._stopped and task.cancelling():  # vLLM's handler turns a cancellation into an answer of its own
            task.uncancel()
            raise _stopping()


def _stopping() -> Unavailable:
    return Unavailable("the server is stopping; ask again when it is back", code="stopping")
