"""The watch over the workers goes on whatever one look at them gave."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inferscale_server import brain
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from tests.memory.fakes import FakeEmbedder
from tests.memory.test_footprint import brain_of
from tests.unit.engines import world


async def test_a_command_that_failed_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(brain, "WATCH_INTERVAL_S", 0.0)
    here, looks, often = world(), 0, asyncio.Event()
    memory = MemoryService(FactStore(tmp_path / "facts.sqlite3"), ExactIndex(), FakeEmbedder(), here.encoder)
    watched = brain_of(here, memory, CollectorRegistry())

    async def stats() -> list[dict[str, Any]]:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise TimeoutError("planted")
        if looks == 4:
            often.set()
        return [{"errors": {"capture": looks - 1}}]

    watched.engine_stats = stats
    with caplog.at_level(logging.WARNING):
        watch = asyncio.create_task(watched._watch_workers())
        async with asyncio.timeout(30):
            await often.wait()
        watch.cancel()
    assert watched.faults["worker0:capture"] == looks - 1 and "TimeoutError" in caplog.text
    await memory.aclose()
