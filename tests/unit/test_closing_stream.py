"""A stream of events ends cleanly however the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.chat import ChatDesk, ClosingStream
from inferscale_server.engine.door import Flight
from inferscale_server.engine.heard import heard as heard_in
from inferscale_server.engine.turn import Turn
from inferscale_server.extraction.build import backlog_of
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.extraction.extractor import VerbatimExtractor
from inferscale_server.extraction.judge import RuleJudge
from inferscale_server.memory import MemoryService
from tests.memory.conftest import clock as clock
from tests.memory.conftest import embedder as embedder
from tests.memory.conftest import memory as memory
from tests.memory.conftest import path as path
from tests.memory.conftest import sink as sink
from tests.memory.stores import ALICE


def streaming(heard: list[str], endless: bool) -> ClosingStream:
    async def events() -> AsyncIterator[str]:
        try:
            yield "data: one\n\n"
            if endless:
                await asyncio.Event().wait()
        finally:
            heard.append("closed")

    return ClosingStream(events(), lambda: heard.append("ended"))


class Storyteller(ChatDesk):
    """Answers with a beginning and no end, as vLLM's handler would stream it."""

    async def _create(self, request: Any, raw_request: Any) -> Any:
        async def events() -> AsyncIterator[str]:
            yield 'data: {"choices": [{"index": 0, "delta": {"content": "Once upon"}}]}\n\n'
            await asyncio.Event().wait()

        return events()


async def serve(stream: Any, hangs_up: bool) -> None:
    sent = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await sent.wait()
        if not hangs_up:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message.get("body"):
            sent.set()

    await stream({"type": "http"}, receive, send)


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_what_is_to_be_done_at_the_end_is_done_once_after_the_last_event(hangs_up: bool) -> None:
    heard: list[str] = []
    await serve(streaming(heard, endless=hangs_up), hangs_up)
    assert heard == ["closed", "ended"]


async def test_what_the_user_said_is_remembered_when_the_client_hangs_up_amid_the_answer(
    memory: MemoryService,
) -> None:
    extraction = Extraction(memory, VerbatimExtractor(), RuleJudge(), "both")
    brain: Any = SimpleNamespace(memory=memory, extraction=extraction, backlog=backlog_of(extraction, lambda _: None))
    ask = ChatMemory(ALICE, remember=True)
    spoken = heard_in(brain, ask, [{"role": "user", "content": "I have a dog"}])
    request = SimpleNamespace(stream_options=None, n=1)
    turn = Turn(ask, "off", "nothing_remembered", request, Flight("salt"), spoken)
    nothing: Any = None
    desk = Storyteller(brain, nothing, nothing, nothing, nothing, 100)
    await serve(await desk._stream(turn, request, nothing, 0.0), hangs_up=True)
    await brain.backlog.drain()
    assert [fact.text for fact in memory.facts(ALICE)] == ["I have a dog"]


async def test_it_is_done_too_when_nothing_could_be_sent() -> None:
    heard: list[str] = []

    async def gone(message: MutableMapping[str, Any]) -> None:
        raise OSError("the client is gone")

    async def receive() -> MutableMapping[str, Any]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(Exception):  # noqa: B017  which one, says the web framework
        await streaming(heard, endless=False)({"type": "http"}, receive, gone)
    assert heard == ["ended"]
