"""The service end to end: real store, real index, fake embedder, a sink that keeps what it heard."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferscale_server.embedding import EMBED_SLICE, QUERY_CACHE_SIZE
from inferscale_server.errors import ConfigError, InvalidRequest, NotFound, StorageFull, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.limits import MAX_QUERY_CHARS_EMBEDDED
from inferscale_server.memory import MemoryService
from inferscale_server.types import AddOutcome, FactDraft, Owner
from tests.memory.fakes import FailsAfterCommit, FakeEmbedder, RecordingSink

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")


class GatedEmbedder(FakeEmbedder):
    """Holds texts that say "slow" back until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.entered = threading.Event()

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if any("slow" in text for text in texts):
            self.entered.set()
            assert self.gate.wait(timeout=10)
        return super().embed(texts)


class GatedStore(FactStore):
    """Holds an add back before it begins, until the gate opens."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.entered = threading.Event()

    def add(self, *args: Any) -> tuple[AddOutcome, ...]:
        self.entered.set()
        assert self.gate.wait(timeout=10)
        return super().add(*args)


@pytest.fixture
async def memory(path: Path, embedder: FakeEmbedder, sink: RecordingSink) -> AsyncIterator[MemoryService]:
    service = await started(FactStore(path), embedder, sink)
    yield service
    await service.aclose()


async def started(
    store: FactStore, embedder: FakeEmbedder | None = None, sink: RecordingSink | None = None
) -> MemoryService:
    service = MemoryService(store, ExactIndex(), embedder or FakeEmbedder(), sink or RecordingSink())
    await service.start()
    return service


async def add(memory: MemoryService, owner: Owner, *texts: str) -> list[str]:
    outcomes = await memory.add(owner, [FactDraft(text) for text in texts])
    return [outcome.id for outcome in outcomes if outcome.id is not None]


async def found(memory: MemoryService, owner: Owner, query: str, k: int = 10) -> list[str]:
    return [hit.fact.text for hit in await memory.search(owner, query, k)]


async def test_an_added_fact_is_found_at_once_best_first(memory: MemoryService) -> None:
    await add(memory, ALICE, "I like tea", "my dog is called Rex")
    hits = await memory.search(ALICE, "dog called Rex", 2)
    assert [hit.fact.text for hit in hits] == ["my dog is called Rex", "I like tea"]
    assert hits[0].score > hits[1].score


async def test_a_hit_below_the_wanted_score_is_left_out(memory: MemoryService) -> None:
    await add(memory, ALICE, "Rex", "I like tea")
    assert [hit.fact.text for hit in await memory.search(ALICE, "Rex", 5, 0.99)] == ["Rex"]


async def test_the_sink_hears_of_new_facts_once_in_order(memory: MemoryService, sink: RecordingSink) -> None:
    ids = await add(memory, ALICE, "one", "two", "one")
    await add(memory, ALICE, "two")
    assert sink.heard == [("added", ALICE, tuple(ids[:2]))]


async def test_a_deleted_fact_is_not_found_again(memory: MemoryService, sink: RecordingSink) -> None:
    gone, kept = await add(memory, ALICE, "my code is 1234", "I like tea")
    await memory.delete(ALICE, gone)
    assert await found(memory, ALICE, "my code is 1234") == ["I like tea"]
    with pytest.raises(NotFound):
        await memory.get(ALICE, gone)
    assert [fact.id for fact in (await memory.page(ALICE)).facts] == [kept]
    assert sink.heard[-1] == ("forgotten", ALICE, (gone,))
    with pytest.raises(NotFound):
        await memory.delete(ALICE, gone)


async def test_a_deleted_owner_is_gone_and_the_other_is_not(memory: MemoryService, sink: RecordingSink) -> None:
    await add(memory, ALICE, "one", "two")
    await add(memory, BOB, "one")
    assert await memory.delete_owner(ALICE) == 2
    assert await found(memory, ALICE, "one") == [] and memory.count(ALICE) == 0
    assert await found(memory, BOB, "one") == ["one"]
    assert sink.heard[-1] == ("owner_forgotten", ALICE, ())
    assert await memory.delete_owner(ALICE) == 0


async def test_another_owners_fact_looks_like_none(memory: MemoryService) -> None:
    (fact_id,) = await add(memory, ALICE, "my code is 1234")
    for attempt in (memory.get(BOB, fact_id), memory.delete(BOB, fact_id)):
        with pytest.raises(NotFound) as caught:
            await attempt
        assert caught.value.status == 404
    assert await found(memory, BOB, "my code is 1234") == []
    assert (await memory.get(ALICE, fact_id)).text == "my code is 1234"
    assert memory.epoch(ALICE) == memory.epoch(BOB) == 0


@pytest.mark.parametrize(
    ("left", "right"),
    [(Owner("a", "b/c"), Owner("a/b", "c")), (Owner("local", "test_user"), Owner("local", "test_user1"))],
)
async def test_owners_with_similar_names_never_meet(memory: MemoryService, left: Owner, right: Owner) -> None:
    await add(memory, left, "the code is 1234")
    assert await found(memory, right, "the code is 1234") == []
    assert await memory.delete_owner(right) == 0
    assert await found(memory, left, "the code is 1234") == ["the code is 1234"]


async def test_twenty_adds_of_one_text_at_once_store_it_once(memory: MemoryService, sink: RecordingSink) -> None:
    results = await asyncio.gather(*(memory.add(ALICE, [FactDraft("Rex is a dog")]) for _ in range(20)))
    outcomes = [outcome for (outcome,) in results]
    assert sorted(outcome.status for outcome in outcomes) == ["duplicate"] * 19 + ["stored"]
    assert len({outcome.id for outcome in outcomes}) == 1
    assert memory.count(ALICE) == 1 and len(sink.heard) == 1


async def test_adds_of_one_owner_keep_their_order_and_leave_no_queue(memory: MemoryService) -> None:
    texts = [f"fact {i}" for i in range(30)]
    await asyncio.gather(*(add(memory, ALICE, text) for text in texts))
    assert [fact.text for fact in (await memory.page(ALICE)).facts] == texts
    assert len(memory._turns) == 0 and memory._writes == set()


async def test_a_restart_keeps_all_and_finds_the_same(path: Path) -> None:
    first = await started(FactStore(path))
    ids = await add(first, ALICE, *(f"fact {i} about the dog {i % 7}" for i in range(100)))
    await add(first, BOB, "Rex")
    await first.delete(ALICE, ids[50])
    before = await first.search(ALICE, "about dog 3", 20)
    await first.aclose()
    sink = RecordingSink()
    second = await started(FactStore(path), sink=sink)
    assert await second.search(ALICE, "about dog 3", 20) == before
    assert (second.count(ALICE), second.count(BOB), second.epoch(ALICE)) == (99, 1, 1)
    assert sink.heard == []
    await second.aclose()


async def test_what_was_deleted_stays_gone_after_a_crash(memory: MemoryService, path: Path, tmp_path: Path) -> None:
    gone, _ = await add(memory, ALICE, "my code is 1234", "I like tea")
    await add(memory, BOB, "my code is 5678")
    await memory.delete(ALICE, gone)
    await memory.delete_owner(BOB)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for file in path.parent.glob(path.name + "*"):  # what a kill at this moment would leave: an open log, no close
        shutil.copy(file, crashed)
    restarted = await started(FactStore(crashed / path.name))
    assert await found(restarted, ALICE, "my code is") == ["I like tea"]
    assert await found(restarted, BOB, "my code is") == []
    await restarted.aclose()


async def test_the_epoch_grows_with_every_delete_like_the_stored_one(memory: MemoryService, path: Path) -> None:
    one, two = await add(memory, ALICE, "one", "two")
    epochs = [memory.epoch(ALICE)]
    for delete in (memory.delete(ALICE, one), memory.delete(ALICE, two), memory.delete_owner(ALICE)):
        await delete
        epochs.append(memory.epoch(ALICE))
    assert epochs == [0, 1, 2, 3]
    await memory.aclose()
    store = FactStore(path)
    assert store.epoch(ALICE) == 3
    store.close()


async def test_another_embedder_than_before_is_refused_at_start(memory: MemoryService, path: Path) -> None:
    await add(memory, ALICE, "tea")
    await memory.aclose()
    with pytest.raises(ConfigError):
        await started(FactStore(path), FakeEmbedder("other"))


async def test_a_cancelled_request_leaves_its_committed_fact_findable(path: Path, sink: RecordingSink) -> None:
    store = GatedStore(path)
    memory = await started(store, sink=sink)
    request = asyncio.create_task(memory.add(ALICE, [FactDraft("my dog is Rex")]))
    await asyncio.to_thread(store.entered.wait)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    store.gate.set()
    await add(memory, BOB, "comes after it in the writer thread")
    assert await found(memory, ALICE, "dog") == ["my dog is Rex"]
    assert sink.heard[0][:2] == ("added", ALICE)
    await memory.aclose()


async def test_a_request_cancelled_while_embedding_stores_nothing_and_frees_the_queue(path: Path) -> None:
    embedder = GatedEmbedder()
    memory = await started(FactStore(path), embedder)
    request = asyncio.create_task(add(memory, ALICE, "slow"))
    await asyncio.to_thread(embedder.entered.wait)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    embedder.gate.set()
    await add(memory, ALICE, "next")
    assert [fact.text for fact in (await memory.page(ALICE)).facts] == ["next"]
    await memory.aclose()


async def test_deleting_an_owner_deletes_also_what_was_being_added_before(path: Path) -> None:
    embedder = GatedEmbedder()
    memory = await started(FactStore(path), embedder)
    adding = asyncio.create_task(add(memory, ALICE, "slow"))
    await asyncio.to_thread(embedder.entered.wait)
    deleting = asyncio.create_task(memory.delete_owner(ALICE))
    embedder.gate.set()
    await adding
    assert await deleting == 1
    assert memory.count(ALICE) == 0
    await memory.aclose()


async def test_closing_finishes_what_has_begun_and_refuses_what_comes_later(path: Path) -> None:
    store = GatedStore(path)
    memory = await started(store)
    adding = asyncio.create_task(add(memory, ALICE, "one"))
    await asyncio.to_thread(store.entered.wait)
    closing = asyncio.create_task(memory.aclose())
    store.gate.set()
    await asyncio.gather(adding, closing)
    for late in (memory.add(ALICE, [FactDraft("two")]), memory.page(ALICE), memory.embed_query(ALICE, "x")):
        with pytest.raises(Unavailable):
            await late
    await memory.aclose()
    reopened = FactStore(path)
    assert reopened.count(ALICE) == 1
    reopened.close()


async def test_a_repeated_query_is_embedded_once_an_owner(memory: MemoryService, embedder: FakeEmbedder) -> None:
    for owner in (ALICE, ALICE, BOB):
        await memory.embed_query(owner, "where is Rex?")
    assert embedder.calls == [("where is Rex?",)] * 2


async def test_the_query_cache_is_bounded_and_forgets_with_its_owner(memory: MemoryService) -> None:
    await memory.embed_query(BOB, "the oldest")
    for i in range(QUERY_CACHE_SIZE):
        await memory.embed_query(ALICE, f"query {i}")
    assert len(memory._embed._queries) == QUERY_CACHE_SIZE and (BOB, "the oldest") not in memory._embed._queries
    await memory.delete_owner(ALICE)
    assert len(memory._embed._queries) == 0


async def test_a_bulk_load_is_embedded_in_slices(memory: MemoryService, embedder: FakeEmbedder) -> None:
    await add(memory, ALICE, *(f"fact {i}" for i in range(2 * EMBED_SLICE + 1)))
    assert [len(call) for call in embedder.calls] == [EMBED_SLICE, EMBED_SLICE, 1]


async def test_of_a_pasted_text_the_question_at_its_end_is_embedded_and_cached_and_no_more(
    memory: MemoryService, embedder: FakeEmbedder
) -> None:
    await add(memory, ALICE, "Rex is a dog", "tea is hot")
    pasted = "filler words " * 100_000
    vector = await memory.embed_query(ALICE, pasted + "is Rex a dog ?" + "\n" * 5_000)
    [[embedded]] = embedder.calls[-1:]
    assert len(embedded) == MAX_QUERY_CHARS_EMBEDDED and embedded.endswith("is Rex a dog ?")
    await memory.find(ALICE, vector, 1, None, None, pasted)
    assert max(len(text) for _, text in memory._embed._queries) == MAX_QUERY_CHARS_EMBEDDED
    assert await found(memory, ALICE, pasted * 2, 1) and max(len(one) for [one] in embedder.calls[-2:]) <= 2_000


class Worded(FakeEmbedder):
    """Texts in pieces of one word."""

    def pieces(self, text: str) -> tuple[str, ...]:
        return tuple(text.split())


async def test_a_long_text_to_embed_goes_in_slices_of_its_pieces_and_comes_back_as_their_mean(path: Path) -> None:
    memory = await started(FactStore(path), embedder := Worded())
    words = [f"word{i}" for i in range(5 * EMBED_SLICE)]
    short, long = await memory.embed_texts(["short", " ".join(words)])
    assert [len(call) for call in embedder.calls] == [EMBED_SLICE] * 5 + [1]
    total = FakeEmbedder().embed(words).sum(axis=0)
    assert np.allclose(long, total / np.linalg.norm(total), atol=1e-5)
    assert np.array_equal(short, FakeEmbedder().embed(["short"])[0])
    await memory.aclose()


async def test_an_embedder_that_returns_rubbish_stores_nothing(path: Path) -> None:
    class Broken(FakeEmbedder):
        def embed(self, texts: Sequence[str]) -> np.ndarray:
            return np.full((len(texts), self.dimension), np.nan, np.float32)

    memory = await started(FactStore(path), Broken())
    with pytest.raises(Unavailable):
        await add(memory, ALICE, "one")
    assert (await memory.page(ALICE)).facts == ()
    await memory.aclose()


async def test_over_the_owners_limit_nothing_is_findable(path: Path, sink: RecordingSink) -> None:
    memory = await started(FactStore(path, max_facts_per_owner=1), sink=sink)
    with pytest.raises(StorageFull):
        await add(memory, ALICE, "one", "two")
    assert await found(memory, ALICE, "one") == [] and sink.heard == []
    await memory.aclose()


async def test_writes_reported_as_failed_after_their_commit_are_mended_by_a_retry(path: Path) -> None:
    sink = RecordingSink()
    store = FactStore(path, connect=partial(sqlite3.connect, factory=FailsAfterCommit))
    memory = await started(store, sink=sink)
    FailsAfterCommit.armed = True
    with pytest.raises(Unavailable):
        await add(memory, ALICE, "my dog is Rex")
    (outcome,) = await memory.add(ALICE, [FactDraft("my dog is Rex")])
    assert outcome.status == "duplicate" and outcome.id is not None
    assert await found(memory, ALICE, "dog") == ["my dog is Rex"]
    FailsAfterCommit.armed = True
    with pytest.raises(Unavailable):
        await memory.delete(ALICE, outcome.id)
    await memory.delete(ALICE, outcome.id)
    assert await found(memory, ALICE, "dog") == []
    assert [heard[0] for heard in sink.heard] == ["added", "forgotten"]
    await memory.aclose()


async def test_a_bad_cursor_is_refused_through_the_service(memory: MemoryService) -> None:
    with pytest.raises(InvalidRequest):
        await memory.page(ALICE, 10, "rubbish")


async def test_adding_nothing_stores_nothing(memory: MemoryService, sink: RecordingSink) -> None:
    assert await memory.add(ALICE, []) == ()
    assert sink.heard == []
