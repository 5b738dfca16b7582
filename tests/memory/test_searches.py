"""Long searches run beside the event loop, and what they find is still there when they return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from inferscale_server.errors import Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.filters import parse_filter
from inferscale_server.index import Accept, ExactIndex, Floats
from inferscale_server.known import KnownFacts
from inferscale_server.memory import MemoryService
from inferscale_server.nearest import Question
from inferscale_server.searches import LOOP_BYTES, TRIES, Searches, Sought
from inferscale_server.trigrams import TrigramIndex
from inferscale_server.types import FactChange, FactDraft, Owner, Scored
from tests.memory.fakes import Clock, FakeEmbedder, RecordingSink

ALICE = Owner("local", "alice")
DIMENSION = 384
LONGEST_WAIT_S = 20.0


class WatchedIndex(ExactIndex):
    """Notes in which thread it searches."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def search(
        self, owner: Owner, query: Floats, k: int, min_score: float | None = None, accept: Accept | None = None
    ) -> tuple[Scored, ...]:
        self.threads.append(threading.get_ident())
        return super().search(owner, query, k, min_score, accept)


class HeldIndex(WatchedIndex):
    """Says that it has many vectors, and keeps what it has found until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.found, self.let_go = threading.Event(), threading.Event()

    def bytes(self, owner: Owner) -> int:
        return LOOP_BYTES + 1

    def search(
        self, owner: Owner, query: Floats, k: int, min_score: float | None = None, accept: Accept | None = None
    ) -> tuple[Scored, ...]:
        found = super().search(owner, query, k, min_score, accept)
        self.found.set()
        assert self.let_go.wait(LONGEST_WAIT_S), "nobody could let it go: the event loop waits for the search"
        return found

    async def searched(self) -> None:
        """Return once a search has found what it will return."""
        assert await asyncio.to_thread(self.found.wait, LONGEST_WAIT_S)


class Held:
    """A service whose searches are held."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.index = HeldIndex()
        store = FactStore(path, clock=clock)
        self.memory = MemoryService(store, self.index, FakeEmbedder(), RecordingSink())

    async def remember(self, *drafts: FactDraft) -> list[str]:
        return [str(outcome.id) for outcome in await self.memory.add(ALICE, drafts)]

    async def find(self, meanwhile: Callable[[], object], **how: object) -> list[str]:
        """Ids of the facts about tea, best first, found before `meanwhile` has happened and returned after it."""
        searching = asyncio.create_task(self.memory.search(ALICE, "tea", 2, **how))  # type: ignore[arg-type]
        await self.index.searched()
        await meanwhile()  # type: ignore[misc]
        self.index.let_go.set()
        return [hit.fact.id for hit in await searching]


@pytest.fixture
async def held(path: Path, clock: Clock) -> AsyncIterator[Held]:
    here = Held(path, clock)
    await here.memory.start()
    yield here
    await here.memory.aclose()


async def nothing() -> None:
    """Happens meanwhile."""


async def test_the_event_loop_is_free_while_many_vectors_are_searched(held: Held) -> None:
    first, *_ = await held.remember(FactDraft("tea"), FactDraft("two goats"))
    assert (await held.find(nothing))[0] == first
    assert held.index.threads and threading.get_ident() not in held.index.threads


async def test_a_fact_deleted_during_a_search_is_not_found_and_the_next_best_takes_its_place(held: Held) -> None:
    best, second, third = await held.remember(FactDraft("tea"), FactDraft("tea cup"), FactDraft("tea cup and a pot"))
    assert await held.find(lambda: held.memory.delete(ALICE, best)) == [second, third]


async def test_of_a_user_deleted_during_a_search_nothing_is_found(held: Held) -> None:
    await held.remember(FactDraft("tea"), FactDraft("tea cup"))
    assert await held.find(lambda: held.memory.delete_owner(ALICE)) == []


async def test_a_fact_added_during_a_search_does_not_disturb_it(held: Held) -> None:
    ids = await held.remember(FactDraft("tea"), FactDraft("tea cup"))
    assert await held.find(lambda: held.memory.add(ALICE, [FactDraft("tea pot")])) == ids


async def test_a_fact_that_matches_no_more_when_the_search_returns_is_not_found(held: Held) -> None:
    moved, stays = await held.remember(*(FactDraft(text, metadata={"shelf": 1}) for text in ("tea", "tea cup")))
    change = FactChange(metadata={"shelf": 2})
    found = await held.find(lambda: held.memory.update(ALICE, moved, change), where=parse_filter({"shelf": 1}))
    assert found == [stays]


async def test_a_fact_whose_time_comes_during_a_search_is_not_found(held: Held, clock: Clock) -> None:
    _, stays = await held.remember(FactDraft("tea", expires_at=clock.now + 10), FactDraft("tea cup"))

    async def later() -> None:
        clock.now += 10

    assert await held.find(later) == [stays]


async def test_a_search_ends_although_facts_go_without_end() -> None:
    class Losing(ExactIndex):
        searches = 0

        def search(self, *asked: object, **how: object) -> tuple[Scored, ...]:
            self.searches += 1
            return (Scored("gone", 1.0),)

    known, trigrams = nothing_known()
    index = Losing()
    assert await Searches(known, lambda: 0.0).find(index, trigrams, sought()) == ()
    assert index.searches == TRIES


@pytest.mark.parametrize(("vectors", "beside"), [(1_000, False), (6_000, True)])
async def test_the_number_of_vectors_decides_where_a_search_runs(vectors: int, beside: bool) -> None:
    index, (known, trigrams) = WatchedIndex(), nothing_known()
    rows = np.random.default_rng(0).standard_normal((vectors, DIMENSION), dtype=np.float32)
    index.add(ALICE, [str(row) for row in range(vectors)], rows)
    searches = Searches(known, lambda: 0.0)
    await searches.find(index, trigrams, sought())
    await searches.aclose()
    assert [thread != threading.get_ident() for thread in index.threads] == [beside] * TRIES


async def test_no_long_search_begins_once_it_is_closed() -> None:
    known, trigrams = nothing_known()
    searches = Searches(known, lambda: 0.0)
    await searches.aclose()
    with pytest.raises(Unavailable):
        await searches.find(HeldIndex(), trigrams, sought())


def nothing_known() -> tuple[KnownFacts, TrigramIndex]:
    trigrams = TrigramIndex(lambda text: 1.0)
    return KnownFacts(trigrams), trigrams


def sought() -> Sought:
    return Sought(ALICE, Question(np.ones(DIMENSION, np.float32)), 1)
