"""An owner who outgrows exact search: the graph beside the exact index, while facts come, change and go."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.ann import AnnIndex, ExactAnn, Floats, Ids, Neighbours
from inferscale_server.errors import ConfigError
from inferscale_server.growing_index import GrowingIndex
from inferscale_server.index import ExactIndex
from inferscale_server.index_choice import make_index
from inferscale_server.types import Owner

from .test_ann import units

ALICE, BOB = Owner("local", "alice"), Owner("local", "bob")
DIMENSION = 12


def vectors_of(count: int, seed: int) -> Floats:
    return units(count, seed)


def grown(count: int = 100, graph_from: int = 50) -> tuple[GrowingIndex, ExactIndex]:
    """Alice has a graph; the twin has the same facts."""
    index, twin = GrowingIndex(ExactAnn, graph_from), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(count)], vectors_of(count, 1))
    index.settle()
    assert index.graphed(ALICE)
    return index, twin


def same(index: ExactIndex, twin: ExactIndex, k: int = 10, owner: Owner = ALICE) -> bool:
    def found(of: ExactIndex, query: Floats) -> list[tuple[str, float]]:
        return [(scored.fact_id, round(scored.score, 4)) for scored in of.search(owner, query, k)]

    return all(found(index, query) == found(twin, query) for query in units(5, 77))


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "remove", "replace", "drop"]), st.integers(1, 25)), max_size=15),
    seed=st.integers(0, 10_000),
)
def test_it_finds_what_exact_search_finds_whatever_happens(steps: list[tuple[str, int]], seed: int) -> None:
    index, twin, random, made = GrowingIndex(ExactAnn, 30), ExactIndex(), np.random.default_rng(seed), 0
    there: list[str] = []
    for number, (step, count) in enumerate(steps):
        some = [there[i] for i in random.permutation(len(there))[:count]]
        if step == "add":
            ids = [f"f{made + i}" for i in range(count) for _ in range(1 + (made + i) % 2)]  # some have two pieces
            made, there = made + count, [*there, *dict.fromkeys(ids)]
            rows = vectors_of(len(ids), seed + number)
            for each in (index, twin):
                each.add(ALICE, ids, rows)
        elif step == "remove":
            there = [fact for fact in there if fact not in some]
            for each in (index, twin):
                each.remove(ALICE, some)
        elif step == "replace" and some:
            rows = vectors_of(2, seed + number)
            for each in (index, twin):
                each.replace(ALICE, some[0], rows)
        elif step == "drop" and count > 22:
            there = []
            for each in (index, twin):
                each.remove_owner(ALICE)
        if count % 2:
            index.settle()
        assert index.count(ALICE) == twin.count(ALICE) == len(there)
        assert same(index, twin, 7)
    index.settle()
    assert same(index, twin, 7)


class Held(ExactAnn):
    """A graph whose building waits until it is let go."""

    go = threading.Event()
    began = threading.Event()

    def add(self, ids: Ids, vectors: Floats) -> None:
        Held.began.set()
        assert Held.go.wait(20)
        super().add(ids, vectors)


def test_what_happens_while_a_graph_is_built_is_not_lost() -> None:
    Held.go.clear()
    Held.began.clear()
    index, twin = GrowingIndex(Held, 50), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    assert Held.began.wait(20)
    for each in (index, twin):
        each.remove(ALICE, ["f3", "f4"])
        each.replace(ALICE, "f10", vectors_of(1, 5))
        each.add(ALICE, ["late"], vectors_of(1, 6))
        each.add(ALICE, ["gone"], vectors_of(1, 7))
        each.remove(ALICE, ["gone"])
    assert same(index, twin) and not index.graphed(ALICE)
    Held.go.set()
    index.settle()
    assert index.graphed(ALICE) and same(index, twin, 60)


def test_an_owner_dropped_while_its_graph_is_built_stays_gone() -> None:
    Held.go.clear()
    Held.began.clear()
    index = GrowingIndex(Held, 50)
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    assert Held.began.wait(20)
    index.remove_owner(ALICE)
    Held.go.set()
    index.settle()
    assert not index.graphed(ALICE) and index.search(ALICE, units(1)[0], 5) == ()


def test_a_graph_that_finds_too_little_or_cannot_be_built_leaves_exact_search() -> None:
    class Poor(ExactAnn):
        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            return super().search(query, 1, allow)

    class Broken(ExactAnn):
        def add(self, ids: Ids, vectors: Floats) -> None:
            raise MemoryError

    for kind in (Poor, Broken):
        index, twin = GrowingIndex(kind, 50), ExactIndex()
        for each in (index, twin):
            each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
        index.settle()
        assert index.graphed(ALICE) == (kind is Poor) and same(index, twin)


def test_filters_scores_and_other_owners_are_as_in_exact_search() -> None:
    index, twin = grown()
    for each in (index, twin):
        each.add(BOB, ["b"], vectors_of(1, 3))
    query = units(1, 9)[0]
    odd = lambda fact: int(fact[1:]) % 2 == 1  # noqa: E731
    assert index.search(ALICE, query, 5, accept=odd) == twin.search(ALICE, query, 5, accept=odd)
    least = twin.search(ALICE, query, 3)[-1].score
    assert [s.fact_id for s in index.search(ALICE, query, 9, min_score=least)] == [
        s.fact_id for s in twin.search(ALICE, query, 9, min_score=least)
    ]
    assert same(index, twin, owner=BOB) and not index.graphed(BOB)
    with pytest.raises(ValueError):
        index.search(ALICE, query, 0)
    with pytest.raises(ValueError):
        index.search(ALICE, np.zeros(DIMENSION, np.float32), 5)


def test_a_worn_graph_is_built_anew_and_one_that_shrank_is_dropped() -> None:
    built: list[int] = []

    def counting(dimension: int) -> AnnIndex:
        built.append(dimension)
        return ExactAnn(dimension)

    index = GrowingIndex(counting, 50)
    index.add(ALICE, [f"f{i}" for i in range(100)], vectors_of(100, 1))
    index.settle()
    index.add(ALICE, ["a"], vectors_of(1, 2))
    index.settle()
    assert len(built) == 1
    index.add(ALICE, [f"g{i}" for i in range(12)], vectors_of(12, 3))
    index.settle()
    assert len(built) == 2
    index.remove(ALICE, [f"f{i}" for i in range(90)])
    index.settle()
    assert not index.graphed(ALICE) and index.count(ALICE) == 23


def test_the_names_of_the_configuration_mean_what_is_there() -> None:
    assert type(make_index("exact")) is ExactIndex
    assert isinstance(make_index("faiss"), GrowingIndex) and isinstance(make_index("auto"), GrowingIndex)
    with pytest.raises(ConfigError, match="cuvs"):
        make_index("cuvs")
