"""Free rows against a slow twin: a set of row numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.command import Extent, rows_of
from inferscale_server.extents import FreeRows

from .builders import extents

ROWS = 64

steps = st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(0, 100)), max_size=60)


def slow_take(free: set[int], length: int) -> tuple[Extent, ...] | None:
    """The smallest gap that fits, else the largest ones; of equally large ones the first."""
    if length > len(free):
        return None
    starts = [row for row in sorted(free) if row - 1 not in free]
    gaps = [Extent(row, next(end for end in range(row, ROWS + 1) if end not in free) - row) for row in starts]
    if fitting := [gap for gap in gaps if gap.length >= length]:
        return (Extent(min(fitting, key=lambda gap: gap.length).row, length),)
    taken: list[Extent] = []
    for gap in sorted(gaps, key=lambda gap: -gap.length):
        piece = min(gap.length, length - sum(one.length for one in taken))
        taken += [Extent(gap.row, piece)] if piece else []
    return tuple(taken)


@settings(max_examples=200)
@given(steps)
def test_free_rows_agree_with_a_set_of_numbers(history: list[tuple[bool, int, int]]) -> None:
    fast, slow = FreeRows(ROWS), set(range(ROWS))
    held: list[tuple[Extent, ...]] = []
    for give_back, length, which in history:
        if give_back and held:
            returned = held.pop(which % len(held))
            fast.give_back(returned)
            slow |= set(rows_of(returned))
        else:
            best = slow_take(slow, length)
            taken = fast.take(length)
            assert taken == best and (taken is None) == (length > len(slow))
            if taken is not None:
                rows = rows_of(taken)
                assert len(rows) == len(set(rows)) == length and set(rows) <= slow
                slow -= set(rows)
                held.append(taken)
        assert fast.count == len(slow)


def test_a_fitting_gap_is_used_before_rows_are_split() -> None:
    free = FreeRows(20)
    taken = free.take(20)
    assert taken == extents((0, 20))
    free.give_back(extents((0, 4), (10, 3), (16, 4)))
    assert free.take(3) == extents((10, 3))


def test_pieces_are_used_when_no_gap_is_long_enough() -> None:
    free = FreeRows(10)
    free.take(10)
    free.give_back(extents((0, 2), (4, 3), (9, 1)))
    taken = free.take(6)
    assert taken is not None and sorted(rows_of(taken)) == [0, 1, 4, 5, 6, 9]


def test_returned_neighbours_grow_together() -> None:
    free = FreeRows(9)
    free.take(9)
    free.give_back(extents((0, 3), (6, 3), (3, 3)))
    assert free.take(9) == extents((0, 9))


@pytest.mark.parametrize("twice", [(0, 2), (1, 1), (3, 4), (5, 1)])
def test_giving_back_free_rows_is_noticed(twice: tuple[int, int]) -> None:
    free = FreeRows(8)
    free.take(8)
    free.give_back(extents((0, 2), (5, 2)))
    with pytest.raises(AssertionError, match="overlaps"):
        free.give_back(extents(twice))
