"""Equal vectors of one collection, taken together: copies of one vector fill each other's lists of neighbours in a
graph, and what lies behind them is not found any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from inferscale_server.ann import Floats, Ids

DIGEST_BYTES = 16
"""A digest stands for its vector: a million of these would be 1.5 GB in a dictionary."""


@dataclass(frozen=True, slots=True, eq=False)
class EqualRows:
    """Which rows hold each distinct vector. Vectors are counted by the first row that holds them."""

    order: Ids  # [rows], rows of one vector together and ascending
    starts: Ids  # [distinct + 1], where each vector's rows begin in `order`

    def of(self, vector: int) -> Iterator[int]:
        """The rows of this one, oldest first."""
        return map(int, self.order[self.starts[vector] : self.starts[vector + 1]])

    def distinct(self, vectors: Floats) -> Floats:
        """Float32 [distinct, dimension]: each once; not copied when none is there twice."""
        return vectors if len(self) == len(vectors) else vectors[self.order[self.starts[:-1]]]

    def __len__(self) -> int:
        return len(self.starts) - 1


def equal_rows(vectors: Floats) -> EqualRows:
    """Of float32 [rows, dimension], equal to the last bit."""
    known: dict[bytes, int] = {}
    vector_of: npt.NDArray[np.int64] = np.fromiter(
        (known.setdefault(blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest(), len(known)) for row in vectors),
        np.int64,
        len(vectors),
    )
    order = np.argsort(vector_of, kind="stable")
    return EqualRows(order, np.searchsorted(vector_of[order], np.arange(len(known) + 1)))
