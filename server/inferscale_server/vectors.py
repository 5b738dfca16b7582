"""The vectors of one owner's facts, as the index holds them now. Knows inner products; refuses to know texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from inferscale_server.errors import Unavailable

Floats = npt.NDArray[np.float32]

UNIT_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class FactVectors:
    """`matrix` is float32 [ids, dimension], unit rows: one a fact, a long one's is the mean of its pieces'."""

    ids: tuple[str, ...]
    matrix: Floats
    _looked_up: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)

    def of(self, wanted: Callable[[str], bool]) -> FactVectors:
        """Those of the facts that are wanted, in their order."""
        rows = [row for row, fact_id in enumerate(self.ids) if wanted(fact_id)]
        if len(rows) == len(self.ids):
            return self
        return FactVectors(tuple(self.ids[row] for row in rows), self.matrix[rows])

    def look_up(self, fact_ids: Iterable[str], count: int) -> None:
        """Work out what `nearest` is of these, in whichever thread calls: that takes long among many facts."""
        for fact_id in fact_ids:
            self._looked_up[fact_id, count] = self._nearest(fact_id, count)

    def nearest(self, fact_id: str, count: int) -> tuple[str, ...]:
        """The facts nearest to this one without itself, nearest first, equal ones by place; none for an unknown one."""
        found = self._looked_up.get((fact_id, count))
        return self._nearest(fact_id, count) if found is None else found

    def _nearest(self, fact_id: str, count: int) -> tuple[str, ...]:
        own = self._places.get(fact_id)
        if own is None:
            return ()
        likeness = self.matrix @ self.matrix[own]
        likeness[own] = -np.inf
        count = min(count, len(self.ids) - 1)
        if count < 1:
            return ()
        least = np.partition(likeness, -count)[-count]
        near = np.flatnonzero(likeness >= least)  # more than `count` where some are equally near
        order = near[np.argsort(-likeness[near], kind="stable")]
        return tuple(self.ids[row] for row in order[:count])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {fact_id: place for place, fact_id in enumerate(self.ids)}


NO_VECTORS = FactVectors((), np.zeros((0, 0), np.float32))


def checked(vectors: Floats, texts: int, dimension: int) -> Floats:
    """The same [texts, dimension]. Raises Unavailable unless every row is finite and of length 1."""
    assert vectors.shape == (texts, dimension), (vectors.shape, texts, dimension)
    if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=UNIT_TOLERANCE):
        raise Unavailable("the embedder returned a vector that is not finite or not of length 1")
    return vectors


def means_of(groups: Sequence[Floats]) -> Floats:
    """Float32 [texts, dimension], unit rows, for at least one text, each with unit rows [pieces, dimension]."""
    return np.stack([rows[0] if len(rows) == 1 else _mean(rows) for rows in groups])


def _mean(rows: Floats) -> Floats:
    total = rows.sum(axis=0, dtype=np.float64)
    return np.asarray(total / np.linalg.norm(total), np.float32)
