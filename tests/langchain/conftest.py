"""For all tests here: a scripted engine for chats, the real memory routes behind a port for facts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.memory_server import memory_server
from tests.extraction.script import by_default

from .scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this shell says about a server is not for these tests."""
    for name in ("INFERSCALE_BASE_URL", "INFERSCALE_API_KEY", "LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def memory_url(tmp_path: Path) -> Iterator[str]:
    with memory_server(tmp_path, by_default) as url:
        yield url
