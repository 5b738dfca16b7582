"""Requests that fail while a benchmark goes on: counted, and told at the end, until too many of them fail.

One chat of hundreds that times out says little of the others, so it must not cost the run. When more fail than are
answered there is nothing to measure. Refuses to know what is asked. Any but the client's errors are faults of the
benchmark, and are not caught.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

WARM_UP = "warming up"
"""What is asked before anything counts."""
IN_A_ROW = 5
"""So many failures without an answer between them, beyond those that one fault can take at once: the server is gone."""


class Losses:
    """Answers and failures by what was asked; `at_once` requests at most are under way at one moment. Any thread."""

    def __init__(self, at_once: int = 1) -> None:
        self._enough = IN_A_ROW + at_once - 1
        self._lock = Lock()
        self._answered, self._failed = Counter[str](), Counter[str]()
        self._reasons: dict[str, Exception] = {}
        self._in_a_row = 0

    def tried(self, name: str, ask: Callable[[], T]) -> T | None:
        """What `ask` returns; None when it raised one of the client's errors.

        Raises that error when too many failed: so many in a row, or so many of this name and more than were answered.
        """
        from inferscale_sdk import APIError

        try:
            answer = ask()
        except APIError as error:
            if self._lost(name, error):
                raise
            return None
        with self._lock:
            self._answered[name] += 1
            self._in_a_row = 0
        return answer

    def check(self, name: str) -> None:
        """Call when all of this name was asked, or a good part of it.

        Raises its last error when more failed than were answered.
        """
        with self._lock:
            if self._failed[name] > self._answered[name]:
                raise self._reasons[name]

    def count(self, name: str) -> int:
        """How many of this name failed."""
        with self._lock:
            return self._failed[name]

    @property
    def complaints(self) -> list[str]:
        """A line for each name of which something failed, with the last error."""
        with self._lock:
            return [
                f"{name}: {failed} of {failed + self._answered[name]} failed, such as: {self._reasons[name]}"
                for name, failed in self._failed.items()
            ]

    def _lost(self, name: str, error: Exception) -> bool:
        with self._lock:
            self._failed[name] += 1
            self._reasons[name] = error
            self._in_a_row += 1
            most = self._failed[name] >= self._enough and self._failed[name] > self._answered[name]
            return most or self._in_a_row >= self._enough
