"""An owner who outgrows exact search: the graph beside the exact index, while facts come, change and go."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server import ann_torch
from inferscale_server.ann import AnnIndex, ExactAnn, Floats, Ids, Neighbours
from inferscale_server.ann_cuvs import CuvsAnn
from inferscale_server.errors import ConfigError
from inferscale_server.growing_index import BUILDER_NICENESS, GrowingIndex
from inferscale_server.index import ExactIndex
from inferscale_server.index_choice import make_index
from inferscale_server.types import Owner

from .fake_cuvs import FakeCuvs
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


def test_a_graph_that_finds_too_little_or_cannot_be_built_leaves_exact_search() -> None:
    class Poor(ExactAnn):
        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            return super().search(query, 1 if served else k, allow)

    class Broken(ExactAnn):
        def add(self, ids: Ids, vectors: Floats) -> None:
            raise MemoryError

    class NoDevice(ExactAnn):
        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            raise RuntimeError("the device is gone")

    for kind in (Poor, Broken, NoDevice):
        index, twin, served = GrowingIndex(kind, 50), ExactIndex(), False
        for each in (index, twin):
            each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
        index.settle()
        served = True
        assert same(index, twin) and index.graphed(ALICE) == (kind is Poor)


def test_what_failed_is_tried_again_only_when_there_is_twice_as_much() -> None:
    tried: list[int] = []

    class Broken(ExactAnn):
        def add(self, ids: Ids, vectors: Floats) -> None:
            tried.append(len(ids))
            raise MemoryError

    index = GrowingIndex(Broken, 50)
    for at in range(0, 130, 10):
        index.add(ALICE, [f"f{at + i}" for i in range(10)], vectors_of(10, at))
        index.settle()
    assert tried == [50, 100]


def test_facts_that_come_and_go_wear_no_graph() -> None:
    built: list[int] = []

    def counting(dimension: int) -> AnnIndex:
        built.append(dimension)
        return ExactAnn(dimension)

    index = GrowingIndex(counting, 50)
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    index.settle()
    for turn in range(100):
        index.add(ALICE, [f"guest{turn}"], vectors_of(1, turn))
        index.remove(ALICE, [f"guest{turn}", "never there"])
        index.settle()
    assert len(built) == 1 and index.count(ALICE) == 60


def test_the_best_are_found_however_many_pieces_and_masked_facts_stand_before_them() -> None:
    index, twin = GrowingIndex(ExactAnn, 50), ExactIndex()
    near = units(1, 77)[0] + 0.05 * vectors_of(30, 3)  # the graph's first 30 rows of this query are three facts
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    for each in (index, twin):
        each.add(ALICE, [f"long{i // 10}" for i in range(30)], near.astype(np.float32))
        each.add(ALICE, [f"f{i}" for i in range(900)], vectors_of(900, 1))
    index.settle()
    for each in (index, twin):
        each.add(ALICE, [f"g{i}" for i in range(20)], vectors_of(20, 4))
        each.remove(ALICE, ["long0", *(f"f{i}" for i in range(40))])
    assert index.graphed(ALICE) and same(index, twin, 5)


def test_no_search_builds_anything_once_it_has_settled() -> None:
    fake, threads = FakeCuvs(), list[str]()

    class Watched(CuvsAnn):
        def build(self) -> None:
            threads.append(threading.current_thread().name)
            super().build()

    index, twin = GrowingIndex(lambda dimension: Watched(dimension, fake.modules(), 50), 50), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    index.settle()
    assert fake.calls[:2] == ["brute_force.build", "cagra.build"] and set(fake.calls[2:]) == {"cagra.search"}
    assert threads == ["inferscale-graph"]
    fake.calls.clear()
    assert same(index, twin)
    assert set(fake.calls) == {"cagra.search"}


def test_a_torch_device_finds_what_the_cpu_finds() -> None:
    index, twin = GrowingIndex(lambda dimension: ann_torch.TorchAnn(dimension, "cpu"), 50), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    index.settle()
    for each in (index, twin):
        each.remove(ALICE, ["f3"])
        each.add(ALICE, ["late"], vectors_of(1, 5))
    assert index.graphed(ALICE) and same(index, twin)


def test_nothing_is_built_before_it_may_be_nor_in_an_index_that_is_made_meanwhile() -> None:
    index = GrowingIndex(ExactAnn, 50, at_once=False)
    other = index.empty()
    for each in (index, other):
        each.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
        each.settle()
        assert not each.graphed(ALICE)
    index.start_building()
    index.settle()
    assert index.graphed(ALICE) and not other.graphed(ALICE)
    later = index.empty()
    later.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    later.settle()
    assert later.graphed(ALICE)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no niceness")
def test_a_building_thread_lets_others_go_first() -> None:
    niceness: list[int] = []

    class Watched(ExactAnn):
        def build(self) -> None:
            niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    index, before = GrowingIndex(Watched, 50), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    index.add(ALICE, [f"f{i}" for i in range(60)], vectors_of(60, 1))
    index.settle()
    assert niceness[0] >= BUILDER_NICENESS
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_the_bytes_of_an_owner_are_those_of_the_vectors_and_of_the_graph() -> None:
    index, twin = grown()
    assert index.bytes(ALICE) == twin.bytes(ALICE) + 100 * DIMENSION * 4 and index.bytes(BOB) == 0


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
    assert isinstance(make_index("faiss"), GrowingIndex) and isinstance(make_index("auto"), GrowingIndex)
    with pytest.raises(ConfigError, match="cuvs"):
        make_index("cuvs")


@pytest.mark.parametrize("there", [False, True])
def test_exact_search_moves_to_a_gpu_where_there_is_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ann_torch, "cuda_is_there", lambda: there)
    assert isinstance(make_index("exact"), GrowingIndex) == there


def test_the_graphs_of_the_configuration_wait_until_they_may_be_built() -> None:
    index, twin = make_index("faiss"), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(1_100)], vectors_of(1_100, 1))
    assert isinstance(index, GrowingIndex)
    index.settle()
    assert not index.graphed(ALICE)
    index.start_building()
    index.settle()
    assert index.graphed(ALICE) and same(index, twin)
