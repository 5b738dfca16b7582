"""Injections are timed by the device where launching them says nothing, and nobody waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from inferscale_server.engine.injection_clock import InjectionClock

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass
class Stream:
    """A device that is `done` up to a millisecond of its own; each event stands 3 ms behind the one before."""

    done_ms: float = 0.0
    end_ms: float = 0.0


@dataclass
class Event:
    """An event of that device."""

    stream: Stream
    at_ms: float = field(default=float("inf"))

    def record(self) -> None:
        self.at_ms = self.stream.end_ms
        self.stream.end_ms += 3.0

    def query(self) -> bool:
        return self.at_ms <= self.stream.done_ms

    def elapsed_time(self, end: Event) -> float:
        assert end.query(), "asked before the device was there"
        return end.at_ms - self.at_ms


def test_on_a_gpu_an_injection_counts_once_the_device_has_ended_it() -> None:
    stream = Stream()
    clock = InjectionClock(lambda: Event(stream))
    for tokens in (100, 50):
        with clock.timing(tokens, CUDA):
            pass
    assert clock.read()["tokens"] == 0
    stream.done_ms = 4.0  # behind the first pair, 0 and 3
    assert clock.read() == {"steps": 1, "tokens": 100, "seconds": 0.003, "last_tokens": 100, "last_seconds": 0.003}
    stream.done_ms = 100.0
    assert clock.read()["tokens"] == 150 and clock.read()["seconds"] == pytest.approx(0.006)


def test_on_a_cpu_it_counts_at_once() -> None:
    clock = InjectionClock()
    with clock.timing(7, CPU):
        pass
    told = clock.read()
    assert told["tokens"] == told["last_tokens"] == 7 and told["seconds"] == told["last_seconds"] > 0


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_an_injection_that_raises_is_not_counted(device: torch.device) -> None:
    stream = Stream(done_ms=1e9)
    clock = InjectionClock(lambda: Event(stream))
    with pytest.raises(ValueError), clock.timing(7, device):
        raise ValueError
    assert clock.read()["steps"] == 0
