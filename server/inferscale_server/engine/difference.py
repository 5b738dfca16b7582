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
    keys = max(_apart(group.keys, rows, others) for group in slab.groups)
    values = max(_apart(group.values, rows, others) for group in slab.groups)
    return Difference(keys, values)


def worst_of(reports: Iterable[Sequence[float]]) -> Difference:
    """One word for all ranks, each given as [keys, values]."""
    keys, values = zip(*reports, strict=True)
    return Difference(max(keys), max(values))


def _apart(array: torch.Tensor, rows: torch.Tensor, others: torch.Tensor) -> float:
    """`array`: (layers, slab_rows, heads, head_dim)."""
    one, other = array[:, rows].float().flatten(1), array[:, others].float().flatten(1)  # (layers, n * heads * dim)
    apart = (one - other).norm(dim=1) / other.norm(dim=1).clamp_min(1e-20)
    worst = float(apart.max())
    return worst if math.isfinite(worst) else math.inf
