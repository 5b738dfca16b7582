"""Turns of chats that wait to be remembered: bounded, one after the other, behind all chats.

Knows: how many wait, and of whom. Refuses to know: what becomes of a turn. In memory only: a chat says `queued`, not
`stored`, and what waits when the process dies is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from inferscale_server.extraction.turn import Turn
from inferscale_server.limits import MAX_TURNS_QUEUED, MAX_TURNS_QUEUED_PER_USER
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

Queued = Literal["queued", "queue_full"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A turn of this owner, and what `MemoryService.wipes` said when it was heard."""

    owner: Owner
    turn: Turn
    since: int


class TurnBacklog:
    """For one event loop. `remember` stores one turn; what it raises is counted as `failed` and logged by its kind."""

    def __init__(self, remember: Callable[[Waiting], Awaitable[object]], tell: Callable[[str], None]) -> None:
        self._remember = remember
        self._tell = tell
        self._waiting: deque[Waiting] = deque()
        self._of: Counter[Owner] = Counter()
        self._came = asyncio.Event()

    def __len__(self) -> int:
        """How many turns wait."""
        return len(self._waiting)

    def put(self, waiting: Waiting) -> Queued:
        """Take a turn, unless too many wait already, of this owner or of all."""
        if len(self) >= MAX_TURNS_QUEUED or self._of[waiting.owner] >= MAX_TURNS_QUEUED_PER_USER:
            self._tell("queue_full")
            return "queue_full"
        self._waiting.append(waiting)
        self._of[waiting.owner] += 1
        self._came.set()
        self._tell("queued")
        return "queued"

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._came.wait()
            await self.drain()

    async def drain(self) -> None:
        """Work until nothing waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            self._of[waiting.owner] -= 1
            if not self._of[waiting.owner]:
                del self._of[waiting.owner]
            try:
                await self._remember(waiting)
            except Exception as error:  # one turn's fault must not keep the others from being remembered
                self._tell("failed")
                logger.warning("inferscale: a turn was not remembered: %s", type(error).__name__)
        self._came.clear()
