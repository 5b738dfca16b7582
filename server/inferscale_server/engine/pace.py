"""When encoding, and writing for the extractor, may use the engine: no priority interrupts a step, so a chat would wait
for what is being computed.

While there are chats, encode requests go one at a time, compute few tokens each, start only when no chat is under way,
and leave the engine idle for half as long again as they used it: most chats then meet no encoding at all. So do texts
that the model writes, in turns of their own, since each takes seconds, and with longer rests. Long after the last chat
encoding is not held back, and a few texts are written at once.

Chats that leave the engine no time at all are text for want of KV, which is why they leave it none. An encode request
that waits for seconds is a sign of that: then, for a while, encoding goes before chats, a batch together and with more
tokens at a time. One that is quickly done then has met no step full of chats: they leave time again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic

QUIET_S = 60.0
"""So long after the last chat encoding has the engine for itself: one chat a minute may then meet a whole batch."""
STEP_TOKENS = 96
"""Computed by one request beside chats, or one block of the prefix cache if that is more: 0.1 s on two CPU cores."""
WRITES_AT_ONCE = 4
"""Texts that are written at a time when there are no chats. More would be written in as many steps, but the first chat
that comes then would wait for all of them."""
ARRIVING_S = 0.05
"""From its arrival until it reaches the engine a chat is searching for facts: it is about to need the engine."""
WAIT_AT_MOST_S = 0.25
"""For a moment without a chat; under a load that leaves none, encoding goes on slowly instead of never."""
REST = 1.5
"""Idle time behind a turn, by the time that it took. At 1, half of the chats met a turn, and so did their median."""
WRITING_REST = 3.0
"""The same behind a text: a chat beside it is slower in every step, not in its first alone."""
REST_AT_MOST_S = 0.5
"""Behind an encode request. One that took longer has waited for chats in the engine: it would rest the longer the more
load there is, and the chats would be computed as text for want of it."""
PATIENCE_S = 4.0
"""An encode request that has taken so long beside chats waits behind all that come, and may wait for ever."""
PATIENCE_TIMES = 10
"""At least so many times the quickest request: a slow engine takes long without any waiting."""
STARVED_FOR_S = 60.0
"""So long encoding goes first at most; then one request tries it behind the chats again."""
RELIEVED_S = 1.0
"""A request that went first and took less met no full step: encoding goes behind the chats again at once."""
RELIEVED_TIMES = 3
STARVED_TOKENS = 768
"""Computed at a time then. A request waits for a step that chats have filled: seconds, however little it computes."""
POLL_S = 0.005


@dataclass
class _Lane:
    """Work that takes turns: `one` at a time beside chats, no more than `few` let in at any time."""

    rest: float
    rest_at_most_s: float = float("inf")
    few: AbstractAsyncContextManager[None] = field(default_factory=nullcontext)
    one: asyncio.Lock = field(default_factory=asyncio.Lock)
    rests_until: float = float("-inf")


class Pace:
    """The turns of one server's encode requests, and of what its model writes. For one event loop."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._under_way = 0
        self._last_chat_at = float("-inf")
        self._starved_until = float("-inf")
        self._chats = 0  # that have come
        self._quickest_s: float | None = None  # of encode requests that met no chat
        self._patient: set[asyncio.Timeout] = set()
        self._first_tokens = 0  # computed by requests that go first
        self._first_done = asyncio.Condition()
        self._encoding = _Lane(REST, REST_AT_MOST_S)
        self._writing = _Lane(WRITING_REST, few=asyncio.Semaphore(WRITES_AT_ONCE))

    def chat_arrived(self) -> None:
        """A chat is here; its request follows."""
        self._chats += 1
        self._last_chat_at = self._clock()
        for limit in [limit for limit in self._patient if limit.when() is None]:
            limit.reschedule(asyncio.get_running_loop().time() + self.patience_s)

    @contextmanager
    def chatting(self) -> Iterator[None]:
        """A chat's request is in the engine."""
        self._chats += 1
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._last_chat_at = self._clock()

    @asynccontextmanager
    async def encoding(self, tokens: int) -> AsyncIterator[None]:
        """The turn of an encode request that computes so many tokens."""
        if self.starved and await self._first(tokens):
            try:
                yield
            finally:
                self._first_tokens -= tokens
                async with self._first_done:
                    self._first_done.notify_all()
            return
        async with self._turn(self._encoding):
            yield

    async def _first(self, tokens: int) -> bool:
        """Wait until so many may be computed by what goes first; False: meanwhile chats leave time again."""
        async with self._first_done:
            await self._first_done.wait_for(lambda: not self.starved or self._room_for(tokens))
            first = self.starved
            self._first_tokens += tokens if first else 0
        return first

    def _room_for(self, tokens: int) -> bool:
        return not self._first_tokens or self._first_tokens + tokens <= STARVED_TOKENS

    @asynccontextmanager
    async def patience(self) -> AsyncIterator[None]:
        """Around an encode request that goes behind chats. Raises TimeoutError when they leave it no time, counted from
        the first of them."""
        async with asyncio.timeout(None) as limit:
            self._patient.add(limit)
            if not self._quiet:
                limit.reschedule(asyncio.get_running_loop().time() + self.patience_s)
            try:
                with self._timed():
                    yield
            finally:
                self._patient.discard(limit)

    @property
    def patience_s(self) -> float:
        """How long an encode request may wait behind chats."""
        return max(PATIENCE_S, PATIENCE_TIMES * (self._quickest_s or 0.0))

    def starve(self) -> None:
        """Chats leave encoding no time."""
        self._starved_until = self._clock() + STARVED_FOR_S

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Around an encode request that goes before chats."""
        started = self._clock()
        yield
        if self._clock() - started < max(RELIEVED_S, RELIEVED_TIMES * (self._quickest_s or 0.0)):
            self._starved_until = float("-inf")

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started, calm, chats = self._clock(), not self._under_way, self._chats
        yield
        if calm and chats == self._chats:  # else it has perhaps waited
            took_s = self._clock() - started
            self._quickest_s = took_s if self._quickest_s is None else min(self._quickest_s, took_s)

    def writing(self) -> AbstractAsyncContextManager[None]:
        """The turn of a text that the model writes; inside it, prompts are computed in turns of encode requests."""
        return self._turn(self._writing)

    @property
    def most_tokens(self) -> int | None:
        """How many tokens an encode request may compute that starts now; None: as many as it has."""
        if self._quiet:
            return None
        return STARVED_TOKENS if self.starved else STEP_TOKENS

    @property
    def starved(self) -> bool:
        """Do chats leave encoding no time, so that it goes before them?"""
        return self._clock() < self._starved_until and not self._quiet

    @asynccontextmanager
    async def _turn(self, lane: _Lane) -> AsyncIterator[None]:
        async with lane.few:
            if self._quiet:
                yield
                return
            async with lane.one:
                await self._idle_engine(lane)
                started = self._clock()
                try:
                    yield
                finally:
                    now = self._clock()
                    lane.rests_until = now + min(lane.rest * (now - started), lane.rest_at_most_s)

    @property
    def _quiet(self) -> bool:
        return not self._under_way and self._clock() - self._last_chat_at >= QUIET_S

    @property
    def _chat_is_near(self) -> bool:
        return self._under_way > 0 or self._clock() - self._last_chat_at < ARRIVING_S

    async def _idle_engine(self, lane: _Lane) -> None:
        while self._clock() < lane.rests_until and not self._quiet:
            await self._sleep(POLL_S)
        give_up_at = self._clock() + WAIT_AT_MOST_S
        while self._chat_is_near and self._clock() < give_up_at:
            await self._sleep(POLL_S)
