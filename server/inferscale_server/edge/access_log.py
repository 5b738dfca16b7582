"""One line for each request: which route, what it was answered, how long that took, whose key.

Knows: how a line looks. Refuses to know: paths, queries, users and bodies, so that none of them can be in a line.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from time import perf_counter

logger = logging.getLogger("inferscale_server.access")

NONE = "-"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Any other is a word of the client's."""
LINE = "%s %s %s %.1f ms request %s key %s"


def open_log() -> None:
    """Write lines to standard error from now on: in `inferscale serve`, the log file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


@dataclass(slots=True)
class AccessLine:
    """What is known of a request so far. `template` is the route's, with names in braces and not what stands there."""

    method: str
    request_id: str
    template: str = NONE
    key_id: str | None = None
    _started: float = field(default_factory=perf_counter)

    def write(self, status: int | None) -> None:
        """The response has ended, with this status; None: the client left before it began."""
        if not logger.isEnabledFor(logging.INFO):
            return
        method = self.method if self.method in METHODS else NONE
        took_ms = 1e3 * (perf_counter() - self._started)
        logger.info(LINE, method, self.template, status or NONE, took_ms, self.request_id, self.key_id or NONE)
