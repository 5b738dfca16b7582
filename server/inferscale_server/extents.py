"""Free rows of the slab as extents: allocation without fragmentation, in as few pieces as there are.

Pure bookkeeping; refuses to know what lies in the rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from inferscale_server.command import Extent


class FreeRows:
    """The rows that nothing holds, as sorted, coalesced, disjoint extents."""

    def __init__(self, rows: int) -> None:
        self._free: list[Extent] = [Extent(0, rows)] if rows else []
        self._rows_of = {extent.length: [extent.row] for extent in self._free}  # the same by length, each sorted
        self._lengths = sorted(self._rows_of)
        self.count = rows

    def take(self, length: int) -> tuple[Extent, ...] | None:
        """`length` rows: the smallest single extent that fits, else the largest pieces; None if too few are free."""
        assert length > 0, f"cannot take {length} rows"
        if length > self.count:
            return None
        at = bisect_left(self._lengths, length)
        if at < len(self._lengths):
            return (self._cut(self._lengths[at], length),)
        taken: list[Extent] = []
        while length:
            taken.append(self._cut(self._lengths[-1], min(self._lengths[-1], length)))
            length -= taken[-1].length
        return tuple(taken)

    def give_back(self, extents: Iterable[Extent]) -> None:
        """Return rows. Giving back a row that is already free is a programmer's error."""
        for extent in extents:
            at = bisect_left(self._free, extent.row, key=lambda free: free.row)
            before = self._free[at - 1] if at else None
            after = self._free[at] if at < len(self._free) else None
            assert before is None or before.row + before.length <= extent.row, f"{extent} overlaps {before}"
            assert after is None or extent.row + extent.length <= after.row, f"{extent} overlaps {after}"
            self._insert(at, extent, before, after)
            self.count += extent.length

    def _insert(self, at: int, extent: Extent, before: Extent | None, after: Extent | None) -> None:
        start, stop, first, last = extent.row, extent.row + extent.length, at, at
        if before is not None and before.row + before.length == start:
            start, first = before.row, at - 1
        if after is not None and after.row == stop:
            stop, last = after.row + after.length, at + 1
        self._replace(first, last, [Extent(start, stop - start)])

    def _cut(self, size: int, length: int) -> Extent:
        """The first `length` rows of the first extent of this size."""
        row = self._rows_of[size][0]
        at = bisect_left(self._free, row, key=lambda free: free.row)
        self._replace(at, at + 1, [Extent(row + length, size - length)] if size > length else [])
        self.count -= length
        return Extent(row, length)

    def _replace(self, first: int, last: int, new: list[Extent]) -> None:
        for old in self._free[first:last]:
            rows = self._rows_of[old.length]
            del rows[bisect_left(rows, old.row)]
            if not rows:
                del self._rows_of[old.length]
                del self._lengths[bisect_left(self._lengths, old.length)]
        for extent in new:
            if extent.length not in self._rows_of:
                self._rows_of[extent.length] = []
                insort(self._lengths, extent.length)
            insort(self._rows_of[extent.length], extent.row)
        self._free[first:last] = new


def first_rows(extents: Sequence[Extent], length: int) -> tuple[Extent, ...]:
    """The rows of the first `length` tokens of what lies in `extents`."""
    found = []
    for extent in extents:
        if length <= 0:
            break
        found.append(extent if extent.length <= length else Extent(extent.row, length))
        length -= extent.length
    return tuple(found)


def rows_between(extents: Sequence[Extent], start: int, stop: int) -> tuple[Extent, ...]:
    """The rows of tokens `start` … `stop` - 1 of what lies in `extents`."""
    found = []
    for extent in extents:
        first, last = max(start, 0), min(stop, extent.length)
        if first < last:
            found.append(Extent(extent.row + first, last - first))
        start, stop = start - extent.length, stop - extent.length
    return tuple(found)
