"""What the API process asks of the workers about KV files, and what they answer. Plain values that cross processes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferscale_server.command import Extent
from inferscale_server.kv_codec import KvIdentity, identity_from_wire, identity_to_wire

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says when nothing more can be written."""


@dataclass(frozen=True, slots=True)
class FileOrder:
    """Save a chunk's rows to its file, or fill them from it. `stamp` names the encoding that the rows hold."""

    folder: Path
    stem: str
    identity: KvIdentity
    extents: tuple[Extent, ...]
    stamp: int

    def to_wire(self) -> list[object]:
        """As lists, dictionaries, numbers and texts."""
        rows = [[extent.row, extent.length] for extent in self.extents]
        return [str(self.folder), self.stem, identity_to_wire(self.identity), rows, self.stamp]


def order_from_wire(wire: Any) -> FileOrder:
    """The inverse of `FileOrder.to_wire`. Raises KvFileError or ValueError."""
    folder, stem, identity, rows, stamp = wire
    extents = tuple(Extent(row, length) for row, length in rows)
    return FileOrder(Path(folder), stem, identity_from_wire(identity), extents, stamp)


@dataclass(frozen=True, slots=True)
class FileReport:
    """What became of one order: "ok", or one word why not; and the bytes of the file."""

    result: str
    size_bytes: int = 0

    def to_wire(self) -> list[object]:
        """As a list."""
        return [self.result, self.size_bytes]

    @classmethod
    def from_wire(cls, wire: Any) -> FileReport:
        """The inverse of `to_wire`."""
        result, size_bytes = wire
        return cls(str(result), int(size_bytes))


def joined(ranks: Sequence[FileReport]) -> FileReport:
    """One word for all ranks: the first that is not "ok"; bytes of all."""
    bad = [report.result for report in ranks if report.result != "ok"]
    return FileReport(bad[0] if bad else "ok", sum(report.size_bytes for report in ranks))
