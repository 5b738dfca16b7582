"""Medoids: a few rows that stand for many, the same ones at every start."""

from __future__ import annotations

import numpy as np
import pytest

from inferscale_server.medoids import SAMPLE, medoids


def blobs(groups: int, each: int, spread: float, seed: int = 7) -> np.ndarray:
    """Unit rows around `groups` far-apart directions; row n is of group n % groups."""
    random = np.random.default_rng(seed)
    rows = np.eye(groups, 16)[np.arange(groups * each) % groups] + spread * random.standard_normal((groups * each, 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_each_of_several_clear_groups_has_its_medoid(seed: int) -> None:
    rows = medoids(blobs(6, 30, 0.05, seed), 6)
    assert sorted(row % 6 for row in rows) == list(range(6))


def test_a_medoid_is_the_row_nearest_to_its_groups_mean() -> None:
    matrix = blobs(4, 25, 0.05)
    for row in medoids(matrix, 4):
        group = matrix[np.arange(len(matrix)) % 4 == row % 4]
        assert matrix[row] @ group.mean(axis=0) == pytest.approx((group @ group.mean(axis=0)).max(), abs=1e-6)


def test_the_same_rows_give_the_same_medoids() -> None:
    matrix = blobs(5, 40, 0.5)
    assert len({tuple(medoids(matrix.copy(), 20)) for _ in range(3)}) == 1


@pytest.mark.parametrize("count", [1, 7, 20])
def test_there_are_as_many_as_asked_for_and_none_twice(count: int) -> None:
    rows = medoids(blobs(3, 20, 0.3), count)
    assert len(set(rows)) == count and rows == sorted(rows)


def test_copies_of_one_row_do_not_run_out() -> None:
    assert len(set(medoids(np.ones((30, 1), np.float32), 20))) == 20


def test_no_more_rows_than_there_are() -> None:
    assert medoids(blobs(2, 2, 0.1), 20) == [0, 1, 2, 3]


def test_of_very_many_rows_a_sample_is_clustered() -> None:
    matrix = np.tile(blobs(4, 1, 0.0), (SAMPLE, 1))
    rows = medoids(matrix, 4)
    assert sorted(row % 4 for row in rows) == [0, 1, 2, 3] and max(rows) < len(matrix)
