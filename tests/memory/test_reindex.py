"""A change of embedder: offline, killed half-way, and under a running memory service."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferscale_server.errors import ConfigError, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.reindex import BATCH, prepare, rebuild, reindex, switch
from inferscale_server.types import FactChange, FactDraft, Owner
from inferscale_server.verify import verify
from tests.memory.fakes import FailsAfterCommit, FakeEmbedder, RecordingSink

ALICE, BOB = Owner("local", "alice"), Owner("local", "bob")
OLD, NEW = FakeEmbedder("old", 16), FakeEmbedder("new", 24)


class Pieces(FakeEmbedder):
    """Texts in pieces of two words."""

    def pieces(self, text: str) -> tuple[str, ...]:
        words = text.split()
        return tuple(" ".join(words[i : i + 2]) for i in range(0, len(words), 2))


class Failing(FakeEmbedder):
    """Stops working after some calls, like a process that is killed."""

    def __init__(self, calls: int, name: str = "new") -> None:
        super().__init__(name, 24)
        self.left = calls

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if self.left == 0:
            raise Unavailable("gone")
        self.left -= 1
        return super().embed(texts)


class Bent(FakeEmbedder):
    """The last vector of each call is `factor` times what it should be."""

    def __init__(self, name: str, dimension: int, factor: float) -> None:
        super().__init__(name, dimension)
        self.factor = factor

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        rows = super().embed(texts)
        rows[-1] *= self.factor
        return rows


def silent(done: int, of: int) -> None:
    """Tell nobody."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


def filled(path: Path, count: int) -> FactStore:
    store = FactStore(path)
    store.claim_embedder(OLD.name, OLD.dimension)
    for owner in (ALICE, BOB):
        texts = [f"{owner.user} says {i}" for i in range(count)]
        store.add(owner, [FactDraft(text) for text in texts], OLD.embed(texts))
    return store


def leftovers(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        tables = ("embeddings_next", "embedder_next")
        kept, claimed = (connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
        return kept, claimed


def assert_embedded_with(store: FactStore, embedder: FakeEmbedder) -> None:
    store.claim_embedder(embedder.name, embedder.dimension)
    for vectors in store.vectors():
        texts = [fact.text for fact in store.oldest(vectors.owner, 1_000)]
        assert np.allclose(vectors.matrix, embedder.embed(texts))


def test_all_facts_get_new_vectors_and_the_new_name_with_progress(path: Path) -> None:
    store, told = filled(path, BATCH), []
    assert reindex(store, NEW, lambda done, of: told.append((done, of))) == 2 * BATCH
    assert told == [(0, 2 * BATCH), (BATCH, 2 * BATCH), (2 * BATCH, 2 * BATCH)]
    assert_embedded_with(store, NEW)
    with pytest.raises(ConfigError, match="inferscale reindex --embedder old"):
        store.claim_embedder("old", 16)
    assert leftovers(path) == (0, 0)


def test_a_failed_run_leaves_the_old_vectors_in_use_and_is_continued(path: Path) -> None:
    store = filled(path, 2 * BATCH)
    with pytest.raises(Unavailable):
        reindex(store, Failing(3), silent)
    assert_embedded_with(store, OLD)
    assert leftovers(path) == (3 * BATCH, 1)
    store.close()
    store = FactStore(path)
    assert reindex(store, again := Failing(1), silent) == 4 * BATCH and again.left == 0
    assert_embedded_with(store, NEW)


def test_what_another_embedder_left_behind_is_not_used(path: Path) -> None:
    store = filled(path, BATCH)
    with pytest.raises(Unavailable):
        reindex(store, Failing(1, "third"), silent)
    reindex(store, NEW, silent)
    assert_embedded_with(store, NEW)


def test_facts_that_come_change_or_go_meanwhile_are_right_after_the_switch(path: Path) -> None:
    store = filled(path, 3)
    prepare(store, NEW, silent)
    gone, changed, _ = store.oldest(ALICE, 3)
    assert store.delete(ALICE, gone.id)
    store.update(changed, replace(changed, text="something else"), OLD.embed(["something else"])[0], stale=True)
    store.add(BOB, [FactDraft("late")], OLD.embed(["late"]))
    assert leftovers(path) == (4, 1)  # the vector of a deleted text goes with it
    assert switch(store, NEW) == 6
    assert_embedded_with(store, NEW)


def test_an_empty_store_is_switched(path: Path) -> None:
    store = FactStore(path)
    store.claim_embedder(OLD.name, OLD.dimension)
    assert reindex(store, NEW, silent) == 0
    store.claim_embedder(NEW.name, NEW.dimension)


def test_an_empty_store_takes_another_embedder_without_a_word(path: Path) -> None:
    store = FactStore(path)
    store.claim_embedder(OLD.name, OLD.dimension)
    store.claim_embedder(NEW.name, NEW.dimension)


async def served(path: Path, embedder: FakeEmbedder = OLD) -> MemoryService:
    service = MemoryService(FactStore(path), ExactIndex(), embedder, RecordingSink())
    await service.start()
    return service


async def first(memory: MemoryService, question: str, owner: Owner = ALICE) -> str:
    return (await memory.search(owner, question, 1))[0].fact.text


async def test_a_running_service_answers_with_the_old_embedder_and_then_with_the_new(path: Path) -> None:
    filled(path, 3).close()
    memory = await served(path)
    await memory.search(ALICE, "alice says 2", 1)
    seen: list[str] = []
    loop = asyncio.get_running_loop()

    def tell(done: int, of: int) -> None:
        seen.append(asyncio.run_coroutine_threadsafe(first(memory, "alice says 2"), loop).result(5))

    assert await memory.reindex(NEW, tell) == 6
    assert seen == ["alice says 2"] * len(seen) and seen and memory.embedder is NEW
    assert await first(memory, "alice says 2") == "alice says 2"
    await memory.add(BOB, [FactDraft("tea is fine")])
    assert await first(memory, "tea", BOB) == "tea is fine"
    await memory.aclose()
    await (await served(path, NEW)).aclose()


async def test_adds_updates_and_deletes_during_a_switch_are_all_kept(path: Path) -> None:
    filled(path, 20).close()
    memory = await served(path)
    facts = memory.facts(ALICE)
    work = [memory.add(ALICE, [FactDraft(f"new {i}")]) for i in range(20)]
    work += [memory.delete(ALICE, fact.id) for fact in facts[:5]]
    work += [memory.update(ALICE, fact.id, FactChange(text=f"else {fact.seq}")) for fact in facts[5:10]]
    await asyncio.gather(memory.reindex(NEW, silent), *work)
    said = {fact.text for fact in memory.facts(ALICE)}
    assert len(said) == 35 and {f"new {i}" for i in range(20)} <= said
    hits = await memory.search(ALICE, "new 3", 100)
    assert hits[0].fact.text == "new 3" and {hit.fact.text for hit in hits} == said
    assert memory._index.count(ALICE) == 35
    await memory.aclose()
    store = FactStore(path)
    assert_embedded_with(store, NEW)
    store.close()


async def test_a_switch_that_fails_leaves_the_old_embedder_in_use(path: Path) -> None:
    filled(path, BATCH).close()
    memory = await served(path)
    with pytest.raises(Unavailable):
        await memory.reindex(Failing(1), silent)
    assert memory.embedder is OLD and await first(memory, "alice says 7") == "alice says 7"
    await memory.add(ALICE, [FactDraft("after all")])
    await memory.aclose()


@pytest.mark.parametrize("bad", [np.nan, 0.0, 2.0])
def test_a_vector_that_is_not_finite_or_not_of_length_1_is_not_kept(path: Path, bad: float) -> None:
    store = filled(path, BATCH)
    with pytest.raises(Unavailable, match="not finite or not of length 1"):
        reindex(store, Bent("new", 24, bad), silent)
    assert_embedded_with(store, OLD)
    assert leftovers(path) == (0, 1)
    assert reindex(store, NEW, silent) == 2 * BATCH
    store.close()
    assert verify(path).broken == ()


class NoRoom(ExactIndex):
    """Makes an index that takes no vectors, once."""

    refused = False

    def empty(self) -> ExactIndex:
        if self.refused:
            return ExactIndex()
        self.refused = True
        return Full()


class Full(ExactIndex):
    """No memory left."""

    def add(self, *args: object) -> None:
        raise MemoryError


async def test_an_index_that_cannot_be_made_leaves_the_old_embedder_in_use_in_memory_and_in_the_store(
    path: Path,
) -> None:
    filled(path, 3).close()
    memory = MemoryService(FactStore(path), NoRoom(), OLD, RecordingSink())
    await memory.start()
    with pytest.raises(MemoryError):
        await memory.reindex(NEW, silent)
    assert memory.embedder is OLD
    await memory.add(ALICE, [FactDraft("after all")])
    assert verify(path).broken == () and await first(memory, "after all") == "after all"
    assert await memory.reindex(NEW, silent) == 7
    assert memory.embedder is NEW and verify(path).broken == ()
    await memory.aclose()


class FailsAfterSwitch(FailsAfterCommit):
    """The commit of the switch is done, and reported as failed."""

    def execute(self, *args: Any) -> sqlite3.Cursor:
        FailsAfterCommit.armed |= args[0] == "DELETE FROM embedder_next"
        return super().execute(*args)


def test_a_switch_whose_commit_was_reported_as_failed_but_is_done_counts_as_done(path: Path) -> None:
    filled(path, 3).close()
    store = FactStore(path, connect=partial(sqlite3.connect, factory=FailsAfterSwitch))
    prepare(store, NEW, silent)
    rebuild(store, NEW, ExactIndex())
    assert switch(store, NEW) == 6
    assert_embedded_with(store, NEW)
    store.close()


async def test_closing_ends_a_reindex(path: Path) -> None:
    filled(path, 3 * BATCH).close()
    memory, loop = await served(path), asyncio.get_running_loop()
    closing: list[asyncio.Task[None]] = []

    async def begin_to_close() -> None:
        closing.append(asyncio.create_task(memory.aclose()))
        await asyncio.sleep(0)

    with pytest.raises(Unavailable):
        await memory.reindex(NEW, lambda *_: asyncio.run_coroutine_threadsafe(begin_to_close(), loop).result(5))
    await closing[0]
    assert len(closing) == 1
    store = FactStore(path)
    assert_embedded_with(store, OLD)
    store.close()


async def test_a_long_fact_is_found_by_its_end_also_after_a_restart_and_a_switch(path: Path) -> None:
    long = " ".join(f"filler{i} words{i}" for i in range(40)) + " purple elephant"
    memory = await served(path, Pieces("p", 16))
    await memory.add(ALICE, [FactDraft(long), *(FactDraft(f"purple thing{i}") for i in range(5))])
    for embedder in (None, Pieces("p", 16), Pieces("q", 24)):
        if embedder is not None and embedder.name == "q":
            await memory.reindex(embedder, silent)
        elif embedder is not None:
            await memory.aclose()
            memory = await served(path, embedder)
        hit = (await memory.search(ALICE, "purple elephant", 1))[0]
        assert hit.fact.text == long and hit.score > 0.99
    changed = await memory.update(ALICE, hit.fact.id, FactChange(text="short now"))
    assert await first(memory, "short now") == changed.text
    await memory.delete(ALICE, changed.id)
    assert len(await memory.search(ALICE, "purple elephant", 10)) == 5
    await memory.aclose()
