"""Long searches run beside the event loop, and what they find is still there when they return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest

from inferscale_server.ann import ExactAnn, Ids, Neighbours
from inferscale_server.errors import Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.filters import parse_filter
from inferscale_server.growing_index import GrowingIndex
from inferscale_server.index import Accept, ExactIndex, Floats
from inferscale_server.known import KnownFacts
from inferscale_server.memory import MemoryService
from inferscale_server.nearest import Question
from inferscale_server.searches import LOOP_BYTES, OVERDUE_BESIDE, TRIES, Searches, Sought
from inferscale_server.trigrams import TrigramIndex
from inferscale_server.types import Fact, FactChange, FactDraft, Owner, Scored
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


async def test_a_start_builds_no_graph_before_it_is_told_that_it_may(path: Path) -> None:
    index = GrowingIndex(ExactAnn, 2, at_once=False)
    memory = MemoryService(FactStore(path), index, FakeEmbedder(), RecordingSink())
    await memory.start()
    await memory.add(ALICE, [FactDraft("tea"), FactDraft("tea cup")])
    index.settle()
    assert not index.graphed(ALICE)
    memory.start_building()
    index.settle()
    assert index.graphed(ALICE) and len(await memory.search(ALICE, "tea", 2)) == 2
    await memory.aclose()


class CountedGraph(ExactAnn):
    """Counts its searches."""

    searches = 0

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        CountedGraph.searches += 1
        return super().search(query, k, allow)


class Graphed:
    """60 facts of one owner in a graph, the first ones nearest to the question; the first `mortal` expire at 100."""

    def __init__(self, mortal: int, facts: int = 60) -> None:
        self.now, self.index = 0.0, GrowingIndex(CountedGraph, 50)
        self.known, self.trigrams = nothing_known()
        self.searches = Searches(self.known, lambda: self.now)
        vectors = np.eye(DIMENSION, dtype=np.float32)[:facts] + np.float32(1.0)
        vectors[:, 0] += np.linspace(60, 1, facts)
        self.known.add(made(str(row), 100.0 if row < mortal else None) for row in range(facts))
        self.index.add(ALICE, [str(row) for row in range(facts)], vectors)
        self.index.settle()
        CountedGraph.searches = 0

    async def find(self, k: int) -> list[str]:
        assert self.index.graphed(ALICE)
        hits = await self.searches.find(self.index, self.trigrams, Sought(ALICE, Question(first_axis()), k))
        await self.searches.aclose()
        return [hit.fact.id for hit in hits]


@pytest.mark.parametrize("now", [0.0, 100.0])
async def test_facts_that_expire_some_day_leave_the_graph_in_use_before_and_after(now: float) -> None:
    here = Graphed(mortal=3)
    here.now = now
    assert await here.find(4) == (["0", "1", "2", "3"] if now < 100.0 else ["3", "4", "5", "6"])
    assert CountedGraph.searches == 1


async def test_as_many_live_facts_are_found_however_many_have_expired_before_them() -> None:
    many = OVERDUE_BESIDE + 20
    here = Graphed(mortal=many, facts=many + 10)
    here.now = 100.0
    assert await here.find(5) == [str(many + place) for place in range(5)]
    assert CountedGraph.searches == 0


async def test_a_fact_whose_time_comes_while_the_graph_is_searched_gives_its_place_to_the_next() -> None:
    here = Graphed(mortal=2)
    times = iter([99.0, 100.0])
    here.searches = Searches(here.known, lambda: next(times, 100.0))
    assert await here.find(2) == ["2", "3"]


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


def made(fact_id: str, expires_at: float | None) -> Fact:
    return Fact(fact_id, ALICE, 0, f"note {fact_id}", None, None, None, {}, 0.0, expires_at=expires_at)


def first_axis() -> Floats:
    axis: Floats = np.eye(DIMENSION, dtype=np.float32)[0]
    return axis


def sought() -> Sought:
    return Sought(ALICE, Question(np.ones(DIMENSION, np.float32)), 1)
