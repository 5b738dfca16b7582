"""The vectors of one owner's facts, as the index holds them now. Knows inner products; refuses to know texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class FactVectors:
    """`matrix` is float32 [ids, dimension], unit rows: one a fact, a long one's is the mean of its pieces'."""

    ids: tuple[str, ...]
    matrix: Floats

    def of(self, wanted: Callable[[str], bool]) -> FactVectors:
        """Those of the facts that are wanted, in their order."""
        rows = [row for row, fact_id in enumerate(self.ids) if wanted(fact_id)]
        if len(rows) == len(self.ids):
            return self
        return FactVectors(tuple(self.ids[row] for row in rows), self.matrix[rows])

    def nearest(self, fact_id: str, count: int) -> tuple[str, ...]:
        """The facts nearest to this one without itself, nearest first, equal ones by place; none for an unknown one."""
        if fact_id not in self.ids:
            return ()
        own = self.ids.index(fact_id)
        order = np.argsort(-(self.matrix @ self.matrix[own]), kind="stable")
        return tuple(self.ids[row] for row in order[: count + 1] if row != own)[:count]


NO_VECTORS = FactVectors((), np.zeros((0, 0), np.float32))
