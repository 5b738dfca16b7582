"""A question that could not be measured, and how many of them are told: often all fail for one reason.

Refuses to know what was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHOWN = 5
"""Questions named for one reason, and reasons named."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What was asked of which variant with `k` facts recalled, and why it failed."""

    case: str
    variant: str
    k: int
    reason: str

    def __str__(self) -> str:
        return f"{self.case}, {self.variant}, k = {self.k}: {self.reason}"


def told(failures: Sequence[Failure]) -> list[str]:
    """Lines for a terminal: of each reason, the most frequent first, the first SHOWN failures and how many more."""
    by_reason: dict[str, list[Failure]] = {}
    for failure in failures:
        by_reason.setdefault(failure.reason, []).append(failure)
    groups = sorted(by_reason.values(), key=len, reverse=True)
    lines = [line for group in groups[:SHOWN] for line in _of_one_reason(group)]
    rest = groups[SHOWN:]
    return [*lines, f"and {sum(map(len, rest))} more, for {len(rest)} other reasons"] if rest else lines


def _of_one_reason(group: Sequence[Failure]) -> list[str]:
    lines = [str(failure) for failure in group[:SHOWN]]
    more = len(group) - SHOWN
    return [*lines, f"and {more} more: {group[0].reason}"] if more > 0 else lines
