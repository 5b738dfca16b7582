"""However the vectors lie, a growing index finds what exact search finds: a graph that misses much serves nobody."""

from __future__ import annotations

import numpy as np
import pytest

from inferscale_server import ann_faiss, index_choice
from inferscale_server.ann import ExactAnn, Floats, Ids, Neighbours
from inferscale_server.graph_check import LEAST_RECALL
from inferscale_server.growing_index import GrowingIndex
from inferscale_server.index import ExactIndex
from inferscale_server.index_choice import make_index

from .test_ann import clustered, units
from .test_growing_index import ALICE, DIMENSION, same

WIDTH = 128
ROUNDING = 1e-5


def served(vectors: Floats) -> tuple[GrowingIndex, ExactIndex]:
    """What `--index faiss` serves of these vectors, and its exact twin."""
    index, twin = make_index("faiss"), ExactIndex()
    for each in (index, twin):
        each.add(ALICE, [f"f{i}" for i in range(len(vectors))], vectors)
    assert isinstance(index, GrowingIndex)
    index.start_building()
    index.settle()
    return index, twin


def recall(index: ExactIndex, twin: ExactIndex, queries: Floats, k: int = 20) -> float:
    """Of equal scores any may be found."""
    hits = 0
    for query in queries:
        least = twin.search(ALICE, query, k)[-1].score - ROUNDING
        hits += sum(scored.score >= least for scored in index.search(ALICE, query, k))
    return hits / (k * len(queries))


def test_a_graph_serves_clustered_vectors_as_it_is() -> None:
    vectors = clustered(1_550, 1)
    index, twin = served(vectors[:1_500])
    assert (index.graph_recall(ALICE) or 0) >= LEAST_RECALL and recall(index, twin, vectors[1_500:]) >= 0.98


@pytest.mark.parametrize(("looked_at", "graphed"), [(64, False), (2, True)])
def test_vectors_without_clusters_are_found_by_a_wider_graph_or_by_none(
    looked_at: int, graphed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so few candidates, a graph misses of 2,000 what it misses of 20,000 with more."""
    monkeypatch.setattr(ann_faiss, "EF_SEARCH", 24)
    monkeypatch.setattr(ann_faiss, "LOOKED_AT", looked_at)
    vectors = units(2_050, 1, WIDTH)
    index, twin = served(vectors[:2_000])
    assert index.graphed(ALICE) == graphed == (index.graph_recall(ALICE) is not None)
    for k in (5, 20):
        assert recall(index, twin, vectors[2_000:], k) >= 0.98


def test_equal_vectors_hide_nothing_and_come_oldest_first() -> None:
    one, others = units(1, 5, WIDTH), units(1_000, 6, WIDTH)
    index, twin = served(np.concatenate((np.repeat(one, 1_200, axis=0), others)))
    assert index.graphed(ALICE) and recall(index, twin, others[:40]) >= 0.98
    assert [scored.fact_id for scored in index.search(ALICE, one[0], 20)] == [f"f{i}" for i in range(20)]
    index.remove(ALICE, [f"f{i}" for i in range(0, 60, 2)])
    assert [scored.fact_id for scored in index.search(ALICE, one[0], 20)] == [f"f{i}" for i in range(1, 40, 2)]


def test_nearly_equal_vectors_hide_nothing() -> None:
    one, others = units(1, 5, WIDTH), units(1_000, 6, WIDTH)
    near = one + 0.001 * units(1_500, 7, WIDTH)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    index, twin = served(np.concatenate((near, others)).astype(np.float32))
    assert recall(index, twin, others[:40]) >= 0.98


def test_of_a_fact_with_equal_pieces_one_counts_and_no_other_is_left_out() -> None:
    index, twin = GrowingIndex(ExactAnn, 50), ExactIndex()
    for each in (index, twin):
        each.add(
            ALICE, [f"f{i // 3}" for i in range(90)], np.repeat(np.eye(DIMENSION, dtype=np.float32)[:2], 45, axis=0)
        )
    index.settle()
    assert index.graphed(ALICE) and same(index, twin, 5) and same(index, twin, 30)


def test_a_graph_that_misses_too_much_is_told_of_once_and_tried_again_with_twice_as_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried: list[int] = []

    class Half(ExactAnn):
        def build(self) -> None:
            tried.append(len(self))

        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            return super().search(query, k, np.arange(0, len(self), 2, dtype=np.int64))

    index, twin = GrowingIndex(Half, 50), ExactIndex()
    for at in range(0, 90, 10):
        for each in (index, twin):
            each.add(ALICE, [f"f{at + i}" for i in range(10)], units(10, at))
        index.settle()
        assert same(index, twin) and not index.graphed(ALICE)
    assert tried == [50] and index.graph_recall(ALICE) is None
    assert [record.message.split(" of the")[0][:38] for record in caplog.records] == [
        "a search graph over 50 vectors found 0"
    ]
    index.add(ALICE, [f"g{i}" for i in range(10)], units(10, 100))
    index.settle()
    assert tried == [50, 100]


def test_a_graph_that_misses_too_much_when_it_is_built_anew_serves_no_more() -> None:
    class Spoilt(ExactAnn):
        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            return super().search(query, k, allow if len(self) <= 100 else np.arange(30, dtype=np.int64))

    index, twin = GrowingIndex(Spoilt, 50), ExactIndex()
    for number in range(2):
        for each in (index, twin):
            each.add(ALICE, [f"{number} {i}" for i in range(100)], units(100, number))
        index.settle()
        assert index.graphed(ALICE) == (number == 0) and same(index, twin)


@pytest.mark.parametrize(("name", "least"), [("auto", 20_000), ("faiss", 1_000)])
def test_a_graph_is_built_from_the_number_of_vectors_on_that_the_manual_names(
    name: index_choice.IndexName, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("_cuvs_or_none", "_torch_or_none", "_faiss_or_none"):
        monkeypatch.setattr(index_choice, kind, lambda: ExactAnn)
    index = make_index(name)
    assert isinstance(index, GrowingIndex)
    index.start_building()
    index.add(ALICE, [f"f{i}" for i in range(least - 1)], units(least - 1, 1, 4))
    index.settle()
    assert not index.graphed(ALICE)
    index.add(ALICE, ["last"], units(1, 2, 4))
    index.settle()
    assert index.graphed(ALICE)
