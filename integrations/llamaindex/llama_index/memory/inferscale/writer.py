"""Writes turns to the long-term memory in the background: one after the other, never in the way of a chat.

Knows: a queue, a thread, counters. Refuses to know: what a turn says. The thread ends when nothing waits, and the
interpreter waits for it at exit, so what was put is sent also where nobody flushes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from llama_index.memory.inferscale.turns import Turn

from inferscale_sdk import AddResult

MAX_WAITING_TURNS = 1000

logger = logging.getLogger("llama_index.memory.inferscale")


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """Turns: still waiting, written, and lost to an error; `failed_facts` of written turns were not stored."""

    waiting: int
    written: int
    failed: int
    failed_facts: int


class Writer:
    """A queue of turns and the thread that sends them. Safe to use from threads and event loops alike."""

    def __init__(self, send: Callable[[Turn], AddResult]) -> None:
        self._send = send
        self._waiting: deque[Turn] = deque()
        self._running = False
        self._written = self._failed = self._failed_facts = 0
        self._changed = threading.Condition()

    def __deepcopy__(self, memo: object) -> Writer:
        return Writer(self._send)

    @property
    def counts(self) -> WriteCounts:
        """What became of the turns so far."""
        with self._changed:
            waiting = len(self._waiting) + self._running
            return WriteCounts(waiting, self._written, self._failed, self._failed_facts)

    def put(self, turn: Turn) -> None:
        """Send it soon. A turn that finds the queue full is counted as failed, for the server is far behind."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING_TURNS:
                self._failed += 1
                logger.error("a turn is not remembered: %d turns are waiting already", MAX_WAITING_TURNS)
                return
            self._waiting.append(turn)
            if not self._running:
                self._running = True
                threading.Thread(target=self._drain, name="inferscale-memory").start()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is waiting, at most `timeout_s` seconds. Returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    async def aflush(self, timeout_s: float | None = None) -> bool:
        """Like `flush`, without blocking the event loop."""
        return await asyncio.to_thread(self.flush, timeout_s)

    def _drain(self) -> None:
        while (turn := self._next()) is not None:
            self._write(turn)

    def _next(self) -> Turn | None:
        with self._changed:
            if self._waiting:
                return self._waiting.popleft()
            self._running = False
            self._changed.notify_all()
            return None

    def _write(self, turn: Turn) -> None:
        try:
            outcomes = self._send(turn)
        except Exception as error:  # whatever it is: this thread must go on, and no chat may fail for it
            # Without a traceback, which could show what the user said.
            logger.warning("a turn is not remembered: %s: %s", type(error).__name__, error)
            self._count(failed=1)
        else:
            reasons = [outcome.reason or "no reason given" for outcome in outcomes if outcome.status == "failed"]
            if reasons:  # a turn that gave nothing usable has an outcome too, so this may be no fact at all
                logger.warning("part of a turn is not remembered: %s", "; ".join(dict.fromkeys(reasons)))
            self._count(written=1, failed_facts=len(reasons))

    def _count(self, *, written: int = 0, failed: int = 0, failed_facts: int = 0) -> None:
        with self._changed:
            self._written += written
            self._failed += failed
            self._failed_facts += failed_facts
