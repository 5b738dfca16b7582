"""What a graph must find before it serves, and how far it is widened for that."""

from __future__ import annotations

import numpy as np
import pytest

from inferscale_server import ann_faiss
from inferscale_server.ann import ExactAnn, Floats, Ids, Neighbours
from inferscale_server.ann_cuvs import CuvsAnn
from inferscale_server.ann_faiss import FaissAnn
from inferscale_server.graph_check import LEAST_RECALL, QUESTIONS, sample_of, widened_recall

from .fake_cuvs import FakeCuvs
from .test_ann import DIMENSION, units


class Missing(ExactAnn):
    """Finds every `step`-th row only; widened, every (`step` - 1)-th, as far as that is allowed."""

    step, narrowest = 3, 1

    def widen(self) -> bool:
        if self.step == self.narrowest:
            return False
        self.step -= 1
        return True

    def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
        return super().search(query, k, np.arange(0, len(self), self.step, dtype=np.int64))


def filled(ann: ExactAnn, count: int = 600) -> tuple[ExactAnn, Floats]:
    vectors = units(count)
    ann.add(np.arange(count, dtype=np.int64), vectors)
    return ann, vectors


def test_the_recall_is_the_share_of_the_nearest_in_the_sample() -> None:
    assert widened_recall(*filled(ExactAnn(DIMENSION))) == 1.0
    ann = Missing(DIMENSION)
    ann.narrowest = 3
    assert widened_recall(*filled(ann)) == pytest.approx(1 / 3, abs=0.06)


def test_a_graph_is_widened_until_it_finds_enough_and_no_further_than_pays() -> None:
    ann, vectors = filled(Missing(DIMENSION))
    assert widened_recall(ann, vectors) == 1.0
    ann, vectors = filled(Missing(DIMENSION))
    ann.narrowest = 2  # type: ignore[attr-defined]
    assert widened_recall(ann, vectors) == pytest.approx(1 / 2, abs=0.06) and ann.step == 2  # type: ignore[attr-defined]


def test_a_row_that_is_found_twice_counts_once() -> None:
    class Twice(ExactAnn):
        def search(self, query: Floats, k: int, allow: Ids | None = None) -> Neighbours:
            best = super().search(query, k, allow)
            return Neighbours(np.repeat(best.ids[2:3], k), np.repeat(best.scores[2:3], k))

    assert 0 < widened_recall(*filled(Twice(DIMENSION))) <= 1 / 20


@pytest.mark.parametrize("count", [1, 2, 11, 19])
def test_fewer_vectors_than_are_looked_for_are_all_to_be_found(count: int) -> None:
    assert widened_recall(*filled(ExactAnn(DIMENSION), count)) == 1.0


def test_the_sample_is_the_same_each_time_and_has_length_1_also_among_opposite_rows() -> None:
    opposite = np.array([[1, 0], [-1, 0]], np.float32)
    for vectors in (units(50), opposite):
        sample = sample_of(vectors)
        questions = sample.questions
        assert questions.shape == (QUESTIONS, vectors.shape[1]) and questions.dtype == np.float32
        assert np.allclose(np.linalg.norm(questions, axis=1), 1.0, atol=1e-5)
        assert np.array_equal(questions, sample_of(vectors).questions)


def test_faiss_keeps_more_candidates_until_it_would_look_at_as_many_vectors_as_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ann_faiss, "EF_SEARCH", 24)
    vectors = units(2_000, 1, 128)
    narrow, wide = FaissAnn(128), FaissAnn(128)
    narrow.add(np.arange(2_000, dtype=np.int64), vectors)
    assert widened_recall(narrow, vectors) < LEAST_RECALL and not narrow.widen()  # 31 candidates have 2,000
    monkeypatch.setattr(ann_faiss, "LOOKED_AT", 2)
    wide.add(np.arange(2_000, dtype=np.int64), vectors)
    assert widened_recall(wide, vectors) >= LEAST_RECALL


def test_faiss_is_not_widened_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ann_faiss, "LOOKED_AT", 0)
    ann, widened = FaissAnn(DIMENSION), 0
    while ann.widen():
        widened += 1
    assert ann_faiss.EF_WIDEST / 2 < ann_faiss.EF_SEARCH * 2**widened <= ann_faiss.EF_WIDEST


def test_a_graph_of_cuvs_that_misses_too_much_is_left_for_exact_search_on_the_device() -> None:
    fake = FakeCuvs()
    ann = CuvsAnn(DIMENSION, fake.modules(), graph_from=50)
    ann.add(np.arange(100, dtype=np.int64), units(100))
    assert not ann.widen()
    ann.build()
    assert ann.widen() and not ann.widen()
    ann.search(units(1)[0], 3)
    assert "brute_force.search" in fake.calls and "cagra.search" not in fake.calls
