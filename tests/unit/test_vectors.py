"""The nearest facts by embedding: as a sort of all of them says, looked up before or not."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.vectors import FactVectors

DIRECTIONS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1], [-1, 0, 0]], np.float32)
"""Their products are exact, however they are computed."""


def sorted_nearest(vectors: FactVectors, fact_id: str, count: int) -> tuple[str, ...]:
    """The slow twin: by likeness, equal ones by place."""
    own = vectors.matrix[vectors.ids.index(fact_id)]
    order = sorted(range(len(vectors.ids)), key=lambda row: (-float(vectors.matrix[row] @ own), row))
    return tuple(vectors.ids[row] for row in order if vectors.ids[row] != fact_id)[:count]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 8), st.booleans())
def test_the_nearest_are_those_of_a_sort_and_equal_ones_come_by_place(
    kinds: list[int], count: int, before: bool
) -> None:
    vectors = FactVectors(tuple(f"f{place}" for place in range(len(kinds))), DIRECTIONS[kinds])
    if before:
        vectors.look_up(vectors.ids, count)
    for fact_id in vectors.ids:
        assert vectors.nearest(fact_id, count) == sorted_nearest(vectors, fact_id, count)


def test_an_unknown_fact_has_no_neighbours() -> None:
    assert FactVectors(("a",), np.ones((1, 1), np.float32)).nearest("b", 3) == ()
