"""A table's last column: how many requests of each row failed. There is none when none did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LostColumn:
    """What goes behind a table's heads, and behind each of its rows."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def lost_column(failed: Sequence[int]) -> LostColumn:
    """Of tables whose rows lost so many requests."""
    if not any(failed):
        return LostColumn((), tuple(() for _ in failed))
    return LostColumn(("failed",), tuple((str(count),) for count in failed))
