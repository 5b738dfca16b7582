"""The facts nearest to a question: by meaning as far as the vectors go, by letters for the rest.

A fact that the embedder knows to a share s (so does the question; the smaller counts) scores s times its cosine and
1 - s times the share of the question's letters that it has. For texts that are known in full, that is the cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inferscale_server.errors import InvalidRequest
from inferscale_server.index import Accept, VectorIndex
from inferscale_server.limits import MAX_QUERY_CHARS_EMBEDDED
from inferscale_server.trigrams import TrigramIndex
from inferscale_server.types import Owner, Scored

MAX_EXTRA = 2_000
"""How many more facts than asked for are scored, because letters may bring them up or down."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A question's float32 [dimension] vector, and its words; without words only the vector counts."""

    vector: npt.NDArray[np.float32]
    words: str = ""


def end_of(query: str) -> str:
    """What of a query is looked for: its last MAX_QUERY_CHARS_EMBEDDED characters; who pastes a text asks below it."""
    return query if len(query) <= MAX_QUERY_CHARS_EMBEDDED else query.rstrip()[-MAX_QUERY_CHARS_EMBEDDED:]


def unit_vector(numbers: Sequence[float], dimension: int) -> npt.NDArray[np.float32]:
    """A client's vector as float32 [dimension] of length 1. Raises InvalidRequest for another size or no length."""
    if len(numbers) != dimension:
        raise InvalidRequest(f"vector has {len(numbers)} numbers, the embedder's have {dimension}", param="vector")
    vector = np.asarray(numbers, np.float64)
    largest = np.abs(vector).max()
    if not largest:
        raise InvalidRequest("vector is all zeros", param="vector")
    scaled = vector / largest  # before squaring: the numbers may be anywhere in a double's range
    return np.asarray(scaled / np.linalg.norm(scaled), np.float32)


def nearest(
    index: VectorIndex,
    trigrams: TrigramIndex,
    owner: Owner,
    question: Question,
    k: int,
    min_score: float | None = None,
    accept: Accept | None = None,
) -> tuple[Scored, ...]:
    """The owner's `k` best facts of those that `accept` admits, best first. Raises like VectorIndex.search."""
    kept_there = trigrams.count(owner)
    if not kept_there or not question.words:
        return index.search(owner, question.vector, k, min_score, accept)
    by_vector = index.search(owner, question.vector, k + min(kept_there, MAX_EXTRA), None, accept)
    cosines = {scored.fact_id: scored.score for scored in by_vector}
    shared = trigrams.search(owner, question.words)
    overlaps = {overlap.fact_id: overlap.score for overlap in shared if accept is None or accept(overlap.fact_id)}
    score = _blend(trigrams, owner, trigrams.represents(question.words))
    scored = (Scored(id_, score(id_, cosines.get(id_, 0.0), overlaps.get(id_, 0.0))) for id_ in {**cosines, **overlaps})
    good = (one for one in scored if min_score is None or one.score >= min_score)
    return tuple(sorted(good, key=lambda one: -one.score)[:k])


def _blend(trigrams: TrigramIndex, owner: Owner, known_of_question: float) -> Callable[[str, float, float], float]:
    def score(fact_id: str, cosine: float, overlap: float) -> float:
        share = min(known_of_question, trigrams.represented(owner, fact_id))
        return share * cosine + (1 - share) * overlap

    return score
