"""How far two encodings of the same tokens are apart: the gate's measure, finer than any answer.

Knows the slab's arrays; refuses to know why two encodings ought to be alike (probe.py does).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from inferscale_server.engine.slab import Slab


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest relative difference of any layer, the norm of the difference over the norm of the second; 0 is equal."""

    keys: float
    values: float

    @property
    def worst(self) -> float:
        """The larger one; infinite where a number is not finite."""
        return max(self.keys, self.values)


def difference_of(slab: Slab, rows: torch.Tensor, others: torch.Tensor) -> Difference:
    """Position-free keys and values of `rows` (n,) against those of `others` (n,), all layers of this rank."""
    apart = [_apart(one, other) for one, other in zip(slab.read(rows), slab.read(others), strict=True)]
    return Difference(max(apart[0::2]), max(apart[1::2]))


def worst_of(reports: Iterable[Sequence[float]]) -> Difference:
    """One word for all ranks, each given as [keys, values]."""
    keys, values = zip(*reports, strict=True)
    return Difference(max(keys), max(values))


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Each (layers, n, heads, head_dim)."""
    one, other = one.float().flatten(1), other.float().flatten(1)
    apart = (one - other).norm(dim=1) / other.norm(dim=1).clamp_min(1e-20)
    worst = float(apart.max())
    return worst if math.isfinite(worst) else math.inf
