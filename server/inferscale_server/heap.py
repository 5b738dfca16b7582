"""The heap as Python's cyclic garbage collector sees it: what stays is taken out of its sight.

A full collection looks at every object, and with 100,000 facts in memory the event loop stands still for tens of
milliseconds each time. Facts hold no cycles; they are freed by their reference counts, in sight or not.
"""

from __future__ import annotations

import gc

KEEP_EVERY = 5_000
"""Facts that come in between two calls of `keep`."""


def keep_all() -> None:
    """What lives now, at the end of a start, stays. Blocks for a full collection, before anybody is served."""
    gc.collect()
    gc.freeze()


def keep() -> None:
    """What lives now stays. Looks at what is young only: a cycle that was garbage and not young is never freed."""
    gc.collect(1)
    gc.freeze()


class Intake:
    """Counts facts that come in, and keeps the heap from growing in the collector's sight."""

    def __init__(self) -> None:
        self._facts = 0

    def took(self, facts: int) -> None:
        """So many more facts are in memory."""
        self._facts += facts
        if self._facts >= KEEP_EVERY:
            self._facts = 0
            keep()
