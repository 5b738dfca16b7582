"""How long to wait before asking again whether a user's facts have their KV. Pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from inferscale_sdk._errors import APITimeoutError
from inferscale_sdk._memory_models import Footprint

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


@dataclass(slots=True)
class EncodeWait:
    """One wait, from its start (seconds on any clock) for at most `timeout_s`. Raises ValueError for a bad timeout."""

    started_s: float
    timeout_s: float
    _pause_s: float = FIRST_PAUSE_S

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(f"timeout={self.timeout_s!r}: must be more than 0 seconds")

    def pause_s(self, seen: Footprint, now_s: float) -> float | None:
        """Seconds until the next look; None when nothing is queued. Raises APITimeoutError when the time is up."""
        if seen.queued == 0:
            return None
        left_s = self.started_s + self.timeout_s - now_s
        if left_s <= 0:
            raise APITimeoutError(f"{seen.queued} facts are still without KV after {self.timeout_s:g} s")
        pause_s, self._pause_s = min(self._pause_s, left_s), min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s
