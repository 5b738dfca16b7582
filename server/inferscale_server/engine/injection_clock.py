"""How long injections take in one worker: on a GPU by the device's own events, else by the processor's clock.

On a GPU the launch of a kernel returns long before the kernel ends, and waiting for its end would stall the step. So
events are recorded around it, and read once the device has passed them: nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast

import torch


class DeviceEvent(Protocol):
    """The part of torch.cuda.Event that is used here."""

    def record(self) -> None:
        """Stand here in the device's stream."""

    def query(self) -> bool:
        """Has the device passed it?"""

    def elapsed_time(self, end: DeviceEvent, /) -> float:
        """Milliseconds from this event to the end; both were passed."""


def _cuda_event() -> DeviceEvent:
    return cast(DeviceEvent, torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call, unused-ignore]


@dataclass(frozen=True, slots=True)
class _Span:
    """An injection that the device may not have finished."""

    tokens: int
    start: DeviceEvent
    stop: DeviceEvent


class InjectionClock:
    """Injections since the start, each counted once it has ended."""

    def __init__(self, event: Callable[[], DeviceEvent] = _cuda_event) -> None:
        self.steps, self.tokens, self.seconds = 0, 0, 0.0
        self.last_tokens, self.last_seconds = 0, 0.0
        self._event = event
        self._under_way: deque[_Span] = deque()

    @contextmanager
    def timing(self, tokens: int, device: torch.device) -> Iterator[None]:
        """Time a block that injects so many tokens on a device; what raises is not counted."""
        if device.type != "cuda":
            started = perf_counter()
            yield
            self._note(tokens, perf_counter() - started)
            return
        span = _Span(tokens, self._event(), self._event())
        span.start.record()
        yield
        span.stop.record()
        self._under_way.append(span)
        self._read_passed()

    def read(self) -> dict[str, float]:
        """What the status tells of all that has ended."""
        self._read_passed()
        return {
            "steps": self.steps,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "last_tokens": self.last_tokens,
            "last_seconds": self.last_seconds,
        }

    def _read_passed(self) -> None:
        while self._under_way and self._under_way[0].stop.query():
            span = self._under_way.popleft()
            self._note(span.tokens, span.start.elapsed_time(span.stop) / 1e3)

    def _note(self, tokens: int, seconds: float) -> None:
        self.steps, self.tokens, self.seconds = self.steps + 1, self.tokens + tokens, self.seconds + seconds
        self.last_tokens, self.last_seconds = tokens, seconds
