"""The embedder's thread: a question waits for one slice of facts, however many adds are under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import numpy as np
import pytest

from inferscale_server.embedding import CUT_SLICE_CHARS, EMBED_SLICE, EmbeddingThread
from inferscale_server.types import Owner
from tests.memory.fakes import FakeEmbedder

ALICE = Owner("local", "alice")
ADDS = 6
QUESTION = "where does Rex sleep?"


class Gated(FakeEmbedder):
    """Notes what the thread does, in order; holds the first of it back until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.did: list[str] = []
        self.gate = threading.Event()

    def pieces(self, text: str) -> tuple[str, ...]:
        self._note(f"cut {text}")
        if text == "broken":
            raise ValueError("planted")
        return tuple(text.split("|"))

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self._note(f"embed {texts[0]}")
        return super().embed(texts)

    def _note(self, what: str) -> None:
        assert self.gate.wait(timeout=10)
        self.did.append(what)

    def before(self, question: str) -> list[str]:
        """What came before a question."""
        return self.did[: self.did.index(f"embed {question}")]


@pytest.fixture
async def gated() -> AsyncIterator[tuple[Gated, EmbeddingThread]]:
    embedder = Gated()
    thread = EmbeddingThread(embedder)
    yield embedder, thread
    embedder.gate.set()
    await thread.aclose()


async def begun(*calls: object) -> list[asyncio.Task[object]]:
    """These calls, as far as they come while the gate is closed."""
    tasks = [asyncio.create_task(call) for call in calls]  # type: ignore[arg-type]
    for _ in range(20):
        await asyncio.sleep(0)
    return tasks


async def test_a_question_waits_for_one_slice_of_many_adds(gated: tuple[Gated, EmbeddingThread]) -> None:
    embedder, thread = gated
    adds = await begun(*(thread.texts([f"{add} {at}" for at in range(4 * EMBED_SLICE)]) for add in range(ADDS)))
    (asked,) = await begun(thread.query(ALICE, QUESTION))
    embedder.gate.set()
    await asked
    assert len(embedder.before(QUESTION)) <= 1
    await asyncio.gather(*adds)
    assert len(embedder.did) == 4 * ADDS + 1


async def test_a_question_does_not_wait_until_all_facts_were_looked_at(gated: tuple[Gated, EmbeddingThread]) -> None:
    embedder, thread = gated
    long = [f"{at:02}" + "x" * (CUT_SLICE_CHARS // 2 - 2) for at in range(20)]
    adds = await begun(*(thread.facts(long) for _ in range(ADDS)))
    (asked,) = await begun(thread.query(ALICE, QUESTION))
    embedder.gate.set()
    await asked
    assert len(embedder.before(QUESTION)) <= 2  # two texts of this length are a slice
    await asyncio.gather(*adds)


async def test_adds_take_turns(gated: tuple[Gated, EmbeddingThread]) -> None:
    embedder, thread = gated
    adds = await begun(*(thread.texts([f"{add} {at}" for at in range(3 * EMBED_SLICE)]) for add in range(ADDS)))
    embedder.gate.set()
    await asyncio.gather(*adds)
    assert [did.split()[1] for did in embedder.did] == [str(add) for _ in range(3) for add in range(ADDS)]


async def test_slices_change_nothing_about_pieces_and_vectors(gated: tuple[Gated, EmbeddingThread]) -> None:
    embedder, thread = gated
    embedder.gate.set()
    texts = ["", "a|b", "x" * CUT_SLICE_CHARS * 2, "c", "d|e|f" + "y" * CUT_SLICE_CHARS, *(f"{at}" for at in range(30))]
    found = await thread.facts(texts)
    alone = FakeEmbedder()
    assert [len(rows) for rows in found] == [text.count("|") + 1 for text in texts]
    for text, rows in zip(texts, found, strict=True):
        assert np.allclose(rows, alone.embed(text.split("|")))
    assert await thread.facts([]) == ()


async def test_an_add_that_fails_does_not_hold_the_others_up(gated: tuple[Gated, EmbeddingThread]) -> None:
    embedder, thread = gated
    embedder.gate.set()
    with pytest.raises(ValueError, match="planted"):
        await thread.facts(["broken"])
    assert len(await thread.facts(["a"])) == 1
