"""How long workers take to inject, by their own clocks, which a server's status tells a few seconds late.

Knows: when a status has caught up. Refuses to know: what is asked meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

POLL_S = 0.5
CAUGHT_UP_S = 20.0
"""A server asks its workers every 15 seconds."""


@dataclass(frozen=True, slots=True)
class InjectionClock:
    """What one worker has injected since its start."""

    tokens: int
    seconds: float


def injection_ms(client: InferScaleClient, ask: Callable[[], None], tokens: int) -> float | None:
    """Milliseconds of worker time for injecting so many tokens, over what `ask` asks; of the slowest worker.

    None when the server tells no times, or nothing was injected. Nothing else may be injected meanwhile.
    """
    before = settled_clocks(client)
    ask()
    after = settled_clocks(client)
    pairs = [(new.tokens - old.tokens, new.seconds - old.seconds) for old, new in zip(before, after, strict=False)]
    return max((1e3 * tokens * seconds / injected for injected, seconds in pairs if injected > 0), default=None)


def settled_clocks(client: InferScaleClient) -> Sequence[InjectionClock]:
    """The workers' clocks with all that was injected before this call.

    They have moved since, or were up to date: then they do not move for longer than the server's pause between looks.
    """
    first, until = clocks(client), time.monotonic() + CAUGHT_UP_S
    while (now := clocks(client)) == first and time.monotonic() < until:
        time.sleep(POLL_S)
    return now


def clocks(client: InferScaleClient) -> Sequence[InjectionClock]:
    """What the status tells now; empty when it tells nothing. Raises the SDK's errors."""
    told = client.status().raw.get("workers")
    workers = told if isinstance(told, list) else []
    return [InjectionClock(int(one["injection"]["tokens"]), float(one["injection"]["seconds"])) for one in workers]
