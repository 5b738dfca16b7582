"""An open loop: every request is sent at its time, and its wait counts from that time on.

A loop that waits for answers would send less to a slow server and hide what its users wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TypeVar

from inferscale_server.bench.comparator import Reply
from inferscale_server.bench.load_arrivals import Arrival

T = TypeVar("T")

UNDER_WAY_AT_MOST = 256
"""Threads: more than a server of this size answers at once."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One chat. Milliseconds from the moment at which it was due, waiting for a thread included."""

    first_token_ms: float
    latency_ms: float
    reply: Reply


@dataclass(frozen=True)
class Traffic:
    """What arrives: chats, each with the next of the questions, and adds. `ask` and `add` are called by threads.

    `ask` returns None for a chat that failed and is counted elsewhere.
    """

    questions: Iterator[str]
    ask: Callable[[str], Reply | None]
    add: Callable[[], object]


def open_loop(due: Iterable[Arrival], traffic: Traffic, over: Callable[[], bool] = lambda: False) -> list[Timed]:
    """Send what is due until there is no more, or `over`; returns the chats that were answered, when all are done.

    Raises what one of them raised; nothing more is sent then.
    """
    broken = Event()

    def sent(ask: Callable[[], T]) -> T:
        try:
            return ask()
        except BaseException:
            broken.set()
            raise

    start = time.perf_counter()
    chats: list[Future[Timed | None]] = []
    adds: list[Future[object]] = []
    with ThreadPoolExecutor(UNDER_WAY_AT_MOST) as pool:
        for arrival in due:
            time.sleep(max(start + arrival.at_s - time.perf_counter(), 0.0))
            if over() or broken.is_set():
                break
            if arrival.adds:
                adds.append(pool.submit(sent, traffic.add))
            else:
                timed = partial(_timed, traffic.ask, next(traffic.questions), start + arrival.at_s)
                chats.append(pool.submit(sent, timed))
    for added in adds:
        added.result()
    return [answered for chat in chats if (answered := chat.result()) is not None]


def _timed(ask: Callable[[str], Reply | None], question: str, due: float) -> Timed | None:
    late_ms = 1e3 * (time.perf_counter() - due)
    reply = ask(question)
    if reply is None:
        return None
    assert reply.first_token_ms is not None, "the reply was not streamed"
    return Timed(late_ms + reply.first_token_ms, late_ms + reply.latency_ms, reply)
