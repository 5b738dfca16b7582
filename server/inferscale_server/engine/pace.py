"""When encoding may use the engine: no priority interrupts a step, so a chat would wait for what is being computed.

While there are chats, encode requests go one at a time, start only when no chat is under way, and leave the engine idle
for as long as they used it: half of the chats then meet no encoding at all. Without chats nothing is held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

QUIET_S = 5.0
"""So long after the last chat encoding has the engine for itself."""
ARRIVING_S = 0.05
"""From its arrival until it reaches the engine a chat is searching for facts: it is about to need the engine."""
WAIT_AT_MOST_S = 0.25
"""For a moment without a chat; under a load that leaves none, encoding goes on slowly instead of never."""
REST = 1.0
"""Idle time behind an encode request, by the time that it took."""
POLL_S = 0.005


class Pace:
    """The turns of one server's encode requests. For one event loop."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._under_way = 0
        self._last_chat_at = float("-inf")
        self._rests_until = float("-inf")
        self._one = asyncio.Lock()

    def chat_arrived(self) -> None:
        """A chat is here; its request follows."""
        self._last_chat_at = self._clock()

    @contextmanager
    def chatting(self) -> Iterator[None]:
        """A chat's request is in the engine."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._last_chat_at = self._clock()

    @asynccontextmanager
    async def encoding(self) -> AsyncIterator[None]:
        """An encode request's turn."""
        if self._quiet:
            yield
            return
        async with self._one:
            await self._idle_engine()
            started = self._clock()
            try:
                yield
            finally:
                now = self._clock()
                self._rests_until = now + REST * (now - started)

    @property
    def _quiet(self) -> bool:
        return not self._under_way and self._clock() - self._last_chat_at >= QUIET_S

    @property
    def _chat_is_near(self) -> bool:
        return self._under_way > 0 or self._clock() - self._last_chat_at < ARRIVING_S

    async def _idle_engine(self) -> None:
        while self._clock() < self._rests_until and not self._quiet:
            await self._sleep(POLL_S)
        give_up_at = self._clock() + WAIT_AT_MOST_S
        while self._chat_is_near and self._clock() < give_up_at:
            await self._sleep(POLL_S)
