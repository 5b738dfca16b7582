"""Equal vectors of a collection, each taken once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.equal_rows import equal_rows


@given(kinds=st.lists(st.integers(0, 4), max_size=20))
def test_each_vector_stands_once_in_the_order_of_its_first_row_and_knows_all_its_rows(kinds: list[int]) -> None:
    vectors = np.eye(5, dtype=np.float32)[kinds]
    rows, firsts = equal_rows(vectors), list(dict.fromkeys(kinds))
    assert len(rows) == len(firsts)
    assert rows.distinct(vectors).tolist() == np.eye(5)[firsts].tolist()
    for vector, kind in enumerate(firsts):
        assert list(rows.of(vector)) == [row for row, other in enumerate(kinds) if other == kind]


def test_nothing_is_copied_where_no_vector_is_there_twice() -> None:
    vectors = np.eye(3, dtype=np.float32)
    assert equal_rows(vectors).distinct(vectors) is vectors
