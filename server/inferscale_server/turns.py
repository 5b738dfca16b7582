"""Turns: writes of one owner come one after the other, in the order in which they were asked for.

Knows: who waits. Refuses to know: what for. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from inferscale_server.types import Owner


@dataclass(slots=True)
class _Line:
    """Where writes of one owner queue."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class Turns:
    """A queue for each owner who has something waiting; an idle owner takes no memory."""

    def __init__(self) -> None:
        self._lines: dict[Owner, _Line] = {}

    def __len__(self) -> int:
        """How many owners have a write that runs or waits."""
        return len(self._lines)

    @asynccontextmanager
    async def of(self, owner: Owner) -> AsyncIterator[None]:
        """Wait for the owner's turn, first come, first served, and have it."""
        line = self._lines.setdefault(owner, _Line())
        line.waiting += 1
        try:
            async with line.lock:
                yield
        finally:
            line.waiting -= 1
            if line.waiting == 0:
                del self._lines[owner]
