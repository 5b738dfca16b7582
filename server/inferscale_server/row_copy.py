"""What the API process asks of the workers about copies between the slab and host memory. Plain values on the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from inferscale_server.command import Extent

Direction = Literal["to_host", "to_device"]


@dataclass(frozen=True, slots=True)
class RowCopy:
    """Copy the rows that hold encoding `source_stamp`; the rows that they go to bear `stamp` afterwards."""

    source: tuple[Extent, ...]
    source_stamp: int
    target: tuple[Extent, ...]
    stamp: int

    def to_wire(self) -> list[object]:
        """As lists and numbers."""
        source, target = ([[extent.row, extent.length] for extent in rows] for rows in (self.source, self.target))
        return [source, self.source_stamp, target, self.stamp]


def copy_from_wire(wire: Any) -> RowCopy:
    """The inverse of `RowCopy.to_wire`. Raises TypeError or ValueError for anything else."""
    source, source_stamp, target, stamp = wire
    rows = [tuple(Extent(int(row), int(length)) for row, length in extents) for extents in (source, target)]
    return RowCopy(rows[0], int(source_stamp), rows[1], int(stamp))
