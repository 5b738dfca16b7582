"""How many of the nearest vectors a graph finds, asked of a sample before the graph serves anybody.

A graph's answers say nothing of what it has missed, and how much that is depends on the vectors: of embeddings it finds
nearly all, of vectors without any clusters two thirds. So a sample of questions is answered exactly too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from inferscale_server.ann import AnnIndex, Floats, Ids

LEAST_RECALL = 0.995
"""Of the sample, so that 0.98 is found of questions that lie apart from all rows, which are harder: 0.978 was found of
such where 0.989 was of the sample (20,000 vectors without clusters, faiss, 512 candidates)."""
NEAREST = (5, 20)
"""So many are looked for, each by itself: a graph may keep fewer candidates for fewer."""
QUESTIONS = 48
MIXTURES = ((1.0, 0.0, 1.0), (1.0, 0.0, 1.5), (1.0, 1.0, 1.0), (1.0, 1.0, 1.5))
"""Of which lengths of two rows and of noise questions are made, in turn: near one fact, or between two."""
ROUNDING = 1e-5
"""Scores that differ by less are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """`questions` (float32 [QUESTIONS, dimension], length 1), and the rows that each was made of ([QUESTIONS, 2])."""

    questions: Floats
    origins: Ids


def widened_recall(ann: AnnIndex, vectors: Floats) -> float:
    """The share of the nearest that it finds, of few or of many, whichever is less.

    First it is widened as far as that needs and as pays: what is less than LEAST_RECALL stays so. Row i of `vectors`
    (float32 [rows, dimension], length 1) has the id i.
    """
    if len(vectors) <= 2 * min(NEAREST):  # all of them are asked for
        return 1.0
    sample = sample_of(vectors)
    farthest = _farthest(vectors, sample)
    while (found := _least(ann, vectors, sample, farthest)) < LEAST_RECALL and ann.widen():
        pass
    return found


def sample_of(vectors: Floats) -> Sample:
    """The same for the same vectors."""
    random = np.random.default_rng(0)
    origins = random.integers(0, len(vectors), (QUESTIONS, 2))
    noise = random.standard_normal((QUESTIONS, 1, vectors.shape[1]))
    noise /= np.linalg.norm(noise, axis=2, keepdims=True)
    lengths = np.resize(np.array(MIXTURES), (QUESTIONS, 3))
    mixed = (lengths[:, :, None] * np.concatenate((vectors[origins], noise), axis=1)).sum(axis=1)
    return Sample(np.asarray(mixed / np.linalg.norm(mixed, axis=1, keepdims=True), np.float32), origins)


def _farthest(vectors: Floats, sample: Sample) -> Floats:
    """Float32 [questions, NEAREST]: the score of the last of so many nearest.

    What a question was made of does not count: every graph finds that. By einsum, which stays in this thread: a
    product by BLAS takes all cores, and they are the chats'.
    """
    rows = []
    for question, origins in zip(sample.questions, sample.origins, strict=True):
        others = np.delete(np.einsum("rd,d->r", vectors, question), origins)
        lasts = [max(len(others) - k, 0) for k in NEAREST]
        rows.append(np.partition(others, lasts)[lasts])
    return np.stack(rows)


def _least(ann: AnnIndex, vectors: Floats, sample: Sample, farthest: Floats) -> float:
    return min(_recall(k, ann, vectors, sample, farthest[:, place]) for place, k in enumerate(NEAREST))


def _recall(k: int, ann: AnnIndex, vectors: Floats, sample: Sample, farthest: Floats) -> float:
    """Of the `k` nearest. A search asks the graph for twice as many as it needs, and so does this."""
    wanted: int = min(k, len(vectors) - sample.origins.shape[1])
    hits = 0
    for question, origins, last in zip(sample.questions, sample.origins, farthest, strict=True):
        found = np.setdiff1d(ann.search(question, min(2 * k, len(vectors))).ids, origins)
        hits += min(int((vectors[found] @ question >= last - ROUNDING).sum()), wanted)
    return hits / (wanted * len(farthest))
