"""When nobody is to be disturbed: what can wait asks here before it takes the engine's time.

Knows: who waits for something right now. Refuses to know: for what. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio


class Quiet:
    """Quiet as long as nobody waits."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()
        self._calm = asyncio.Event()
        self._calm.set()

    def begins(self, one: object) -> None:
        """`one` waits from now on; it must live until it ends."""
        self._waiting.add(id(one))
        self._calm.clear()

    def ends(self, one: object) -> None:
        """`one` waits no more. Safe to call twice."""
        self._waiting.discard(id(one))
        if not self._waiting:
            self._calm.set()

    async def wait(self, limit_s: float) -> bool:
        """Return True once nobody waits, or False after `limit_s` seconds: what can wait must not wait for ever."""
        try:
            async with asyncio.timeout(limit_s):
                await self._calm.wait()
        except TimeoutError:
            return False
        return True
