"""The area under the ROC curve: how often a right guess is faster than a wrong one. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Auc:
    """0.5: the time says nothing; 1: it says everything. `error` is the standard error, `low` … `high` holds 95 %."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return max(self.value - 1.96 * self.error, 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return min(self.value + 1.96 * self.error, 1.0)


def auc_of(faster: Sequence[float], slower: Sequence[float]) -> Auc:
    """How often a value of `faster` is below one of `slower`; equals count half. Error: Hanley and McNeil, 1982."""
    assert faster and slower, (len(faster), len(slower))
    ordered, m, n = sorted(slower), len(faster), len(slower)
    above = sum(n - (bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in faster)
    area = above / (m * n)
    twice_faster, twice_slower = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (m - 1) * (twice_faster - area**2) + (n - 1) * (twice_slower - area**2)
    return Auc(area, sqrt(max(spread, 0.0) / (m * n)))
