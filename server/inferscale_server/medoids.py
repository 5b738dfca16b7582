"""Medoids: a few vectors that stand for many. Spherical k-means, then the nearest vector to each centre.

Deterministic: the same vectors in the same order give the same medoids, so that a restart chooses what it chose before.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from inferscale_server.vectors import Floats

SEED = 0
ROUNDS = 20
SAMPLE = 4_096
"""Of more vectors, so many evenly spaced ones are clustered: 20 clusters of 4,096 vectors take a tenth of a second."""


def medoids(matrix: Floats, count: int) -> list[int]:
    """Rows of `count` medoids, ascending; all rows when there are no more.

    Args:
        matrix: float32 [vectors, dimension], unit rows.
    """
    if len(matrix) <= count:
        return list(range(len(matrix)))
    if len(matrix) > max(SAMPLE, count):
        rows = np.linspace(0, len(matrix) - 1, max(SAMPLE, count)).astype(np.intp)
        return [int(rows[row]) for row in medoids(matrix[rows], count)]
    scores = matrix @ _centres(matrix, count).T  # [vectors, centres]
    return sorted(_nearest_of_each(scores))


def _centres(matrix: Floats, count: int) -> Floats:
    """Unit centres [count, dimension] after at most ROUNDS rounds of Lloyd's algorithm on the sphere."""
    centres = matrix[_first(matrix, count)]
    cluster = np.full(len(matrix), -1)
    for _ in range(ROUNDS):
        moved = (matrix @ centres.T).argmax(axis=1)
        if (moved == cluster).all():
            break
        cluster = moved
        centres = _means(matrix, cluster, centres)
    return centres


def _first(matrix: Floats, count: int) -> list[int]:
    """Where the centres start: k-means++ (Arthur and Vassilvitskii, 2007) with a fixed seed."""
    random = np.random.default_rng(SEED)
    chosen = [int(random.integers(len(matrix)))]
    nearest = matrix @ matrix[chosen[0]]  # each vector's similarity to the nearest start
    while len(chosen) < count:
        weights = np.clip(1.0 - nearest.astype(np.float64), 0.0, None)
        weights[chosen] = 0.0
        if weights.sum() <= 0:  # only copies of what is chosen are left
            weights = np.ones(len(matrix))
            weights[chosen] = 0.0
        chosen.append(int(random.choice(len(matrix), p=weights / weights.sum())))
        nearest = np.maximum(nearest, matrix @ matrix[chosen[-1]])
    return chosen


def _means(matrix: Floats, cluster: npt.NDArray[np.intp], old: Floats) -> Floats:
    """The mean direction of each cluster; an empty one keeps its centre."""
    sums = np.zeros_like(old)
    np.add.at(sums, cluster, matrix)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1), old).astype(np.float32)


def _nearest_of_each(scores: Floats) -> list[int]:
    """For each centre the nearest vector of its own cluster, else the nearest of all; none twice."""
    own = scores.argmax(axis=1)[:, None] == np.arange(scores.shape[1])  # [vectors, centres]
    preferred = scores + 4.0 * own  # a cosine is at most 1: a cluster's own come first
    taken: list[int] = []
    for centre in range(scores.shape[1]):
        preferred[taken, centre] = -np.inf
        taken.append(int(preferred[:, centre].argmax()))
    return taken
