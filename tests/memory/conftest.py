"""One memory service for each test: on a file of its own, with a fake embedder and a clock that a test can move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferscale_server.facts import FactStore
from inferscale_server.memory import MemoryService
from tests.memory.fakes import Clock, FakeEmbedder, RecordingSink, started


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The fact store's file."""
    return tmp_path / "facts.sqlite3"


@pytest.fixture
def clock() -> Clock:
    """What the store and the service take for now."""
    return Clock()


@pytest.fixture
def embedder() -> FakeEmbedder:
    """Counts its calls."""
    return FakeEmbedder()


@pytest.fixture
def sink() -> RecordingSink:
    """Writes down what the encoder would be told."""
    return RecordingSink()


@pytest.fixture
async def memory(path: Path, clock: Clock, embedder: FakeEmbedder, sink: RecordingSink) -> AsyncIterator[MemoryService]:
    """Started, and closed at the end."""
    service = await started(FactStore(path, clock=clock), embedder, sink)
    yield service
    await service.aclose()
