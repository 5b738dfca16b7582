"""Chats under way when the server stops."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from inferscale_server.engine.in_flight import InFlight
from inferscale_server.errors import Unavailable


class Story:
    """Two events, then silence; remembers that it was closed."""

    def __init__(self) -> None:
        self.told, self.closed = asyncio.Event(), False

    async def events(self, endless: bool = True) -> AsyncIterator[str]:
        try:
            yield "once"
            yield "upon"
            self.told.set()
            if endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def collect(events: AsyncIterator[str]) -> list[str]:
    return [event async for event in events]


async def test_a_stream_that_the_stop_meets_ends_with_an_error_and_done_and_is_closed() -> None:
    flights, story = InFlight(), Story()
    reader = asyncio.create_task(collect(flights.relay(story.events())))
    await story.told.wait()
    flights.stop()
    *told, error, done = await reader
    assert (told, done) == (["once", "upon"], "data: [DONE]\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "stopping"
    assert story.closed and reader.cancelling() == 0


async def test_a_stream_that_nobody_stops_is_passed_on_unchanged() -> None:
    assert await collect(InFlight().relay(Story().events(endless=False))) == ["once", "upon"]


async def test_a_client_that_hangs_up_is_a_cancellation_and_no_stop() -> None:
    story = Story()
    reader = asyncio.create_task(collect(InFlight().relay(story.events())))
    await story.told.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert story.closed


async def test_an_answer_that_the_stop_meets_is_unavailable() -> None:
    flights = InFlight()
    asked = asyncio.create_task(flights.finish(asyncio.Event().wait()))
    await asyncio.sleep(0)
    flights.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await asked


async def test_a_handler_that_answers_its_own_cancellation_is_unavailable_too() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "client disconnected"
        return "never"

    flights = InFlight()
    asked = asyncio.create_task(flights.finish(stubborn()))
    await asyncio.sleep(0)
    flights.stop()
    with pytest.raises(Unavailable):
        await asked


async def test_what_comes_after_the_stop_is_not_begun() -> None:
    flights, story = InFlight(), Story()
    flights.stop()
    assert len(await collect(flights.relay(story.events()))) == 2
    assert not story.told.is_set()
