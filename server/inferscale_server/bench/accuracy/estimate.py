"""Figures with intervals: what share of text's gain KV keeps, and means. Pure; the bootstrap is over questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 2_000
LOW, HIGH = 2.5, 97.5
"""Percentiles of the resampled figures: a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


def recovered(off: Sequence[float], text: Sequence[float], kv: Sequence[float], seed: int) -> Estimate:
    """(NLL_off - NLL_kv) / (NLL_off - NLL_text), of means over the same questions, one value a question each.

    Not a mean of ratios: where text gains next to nothing, a single question's ratio means nothing. Not finite where
    text gains nothing at all.
    """
    gains = np.array([np.subtract(off, kv), np.subtract(off, text)])  # (2, questions)
    picks = _picks(gains.shape[1], seed)
    kept, possible = gains[:, picks].sum(axis=2)  # (resamples,) each
    with np.errstate(divide="ignore", invalid="ignore"):
        return _estimate(float(np.divide(*gains.sum(axis=1))), kept / possible)


def mean(values: Sequence[float], seed: int) -> Estimate:
    """The mean over questions."""
    of = np.array(values)
    return _estimate(float(of.mean()), of[_picks(len(of), seed)].mean(axis=1))


def _picks(questions: int, seed: int) -> NDArray[np.int64]:
    """(RESAMPLES, questions): indices drawn with replacement."""
    return np.random.default_rng(seed).integers(0, questions, (RESAMPLES, questions))


def _estimate(value: float, resampled: Floats) -> Estimate:
    low, high = np.percentile(resampled, (LOW, HIGH))
    return Estimate(value, float(low), float(high))
