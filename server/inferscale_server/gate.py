"""A gate that many pass at once, and that one can close to be alone.

Knows: who is inside. Refuses to know: what for. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Open at first. Whoever is inside must not pass again: closing waits for them."""

    def __init__(self) -> None:
        self._inside = 0
        self._open = asyncio.Event()
        self._open.set()
        self._left = asyncio.Event()
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Be inside with others; waits while the gate is closed."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._left.set()

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Be alone: waits until everybody has left, and keeps others out meanwhile."""
        async with self._one:
            self._open.clear()
            try:
                while self._inside:
                    self._left.clear()
                    await self._left.wait()
                yield
            finally:
                self._open.set()
