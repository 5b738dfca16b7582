"""Small real stand-ins for what is slow: an embedder without a model, a sink that remembers what it was told."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

import numpy as np

from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.types import Fact, Owner


class FakeEmbedder:
    """Words hashed into 16 dimensions: texts that share words are near each other. Deterministic, no model."""

    def __init__(self, name: str = "fake-16", dimension: int = 16) -> None:
        self.name = name
        self.dimension = dimension
        self.calls: list[tuple[str, ...]] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.calls.append(tuple(texts))
        rows = np.stack([self._row(text) for text in texts]) if texts else np.zeros((0, self.dimension))
        return rows.astype(np.float32)

    def pieces(self, text: str) -> tuple[str, ...]:
        return (text,)

    def represents(self, text: str) -> float:
        return 1.0

    def _row(self, text: str) -> np.ndarray:
        words = text.lower().replace("?", " ").replace(".", " ").split() or [""]
        total = np.sum([self._word(word) for word in words], axis=0)
        return np.asarray(total / np.linalg.norm(total))

    def _word(self, word: str) -> np.ndarray:
        digest = hashlib.shake_256(word.encode("utf-8", "replace")).digest(self.dimension)
        return np.frombuffer(digest, dtype=np.uint8).astype(np.float64) - 127.5


class RecordingSink:
    """An `EncodeSink` that keeps the order of what it heard: ("added", owner, ids), ("forgotten", …), …"""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Owner, tuple[str, ...]]] = []

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        self.heard.append(("added", owner, tuple(fact.id for fact in facts)))

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        self.heard.append(("forgotten", owner, tuple(fact_ids)))

    def owner_forgotten(self, owner: Owner) -> None:
        self.heard.append(("owner_forgotten", owner, ()))

    async def settled(self) -> None:
        """Nothing is kept on any disk."""


class Clock:
    """Time that passes when it is told to, in Unix seconds."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def started(
    store: FactStore, embedder: FakeEmbedder | None = None, sink: RecordingSink | None = None
) -> MemoryService:
    """A service over a real store and a real index."""
    service = MemoryService(store, ExactIndex(), embedder or FakeEmbedder(), sink or RecordingSink())
    await service.start()
    return service


class FailsAfterCommit(sqlite3.Connection):
    """Reports the next commit as failed after it is done, once `armed`."""

    armed = False

    def execute(self, *args: Any) -> sqlite3.Cursor:
        cursor = super().execute(*args)
        if args[0] == "COMMIT" and FailsAfterCommit.armed:
            FailsAfterCommit.armed = False
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return cursor
