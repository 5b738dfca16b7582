"""Start-up calibration: how long this engine takes to compute tokens and to inject them. Mode `auto` chooses by it.

The injected prompt is the default header again and again: nonsense to the model, but the same work as facts. Every try
has a salt of its own, so that nothing comes out of the prefix cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from inferscale_server.catalog import Chunk
from inferscale_server.command import Command, Injection
from inferscale_server.costs import Costs, Line, line_through
from inferscale_server.extents import first_rows

if TYPE_CHECKING:
    from inferscale_server.engine.door import EngineDoor

Clock = Callable[[], float]

SHORT_TOKENS = 64
LONG_TOKENS = 512
"""A second or two of a CPU's time in all. Longer prompts would tell little more: the costs grow almost evenly."""
MOST_TRIES = 8
STEADY = 1.25
"""The fastest try counts, since whatever disturbs only adds; but only once another came within this factor of it. A
machine that is busy with something else would give figures that are wrong as long as the server runs."""


async def calibrate(
    door: EngineDoor, header: Chunk, max_model_len: int, block_tokens: int, clock: Clock = perf_counter
) -> Costs | None:
    """Measure; None when the model's context is too short, the engine did not inject all that it was told to, or the
    machine is too busy for figures that hold."""
    long = min(LONG_TOKENS, max_model_len // 2)
    if long <= SHORT_TOKENS:
        return None
    prefill = await _line(door, header, long, clock, injected=False)
    inject = None if prefill is None else await _line(door, header, long, clock, injected=True)
    return None if prefill is None or inject is None else Costs(prefill, inject, block_tokens)


async def _line(door: EngineDoor, header: Chunk, long: int, clock: Clock, injected: bool) -> Line | None:
    short_ms = await _fastest_ms(door, repeated(header, SHORT_TOKENS), clock, injected)
    long_ms = None if short_ms is None else await _fastest_ms(door, repeated(header, long), clock, injected)
    return None if short_ms is None or long_ms is None else line_through(SHORT_TOKENS, short_ms, long, long_ms)


def repeated(header: Chunk, tokens: int) -> Injection:
    """So many tokens of the header, again and again, and the rows that hold them."""
    times = -(-tokens // len(header.token_ids))
    return Injection((header.token_ids * times)[:tokens], first_rows(header.extents * times, tokens))


async def _fastest_ms(door: EngineDoor, injection: Injection, clock: Clock, injected: bool) -> float | None:
    """Time to first token of the injection's prompt and one token more; None when it was not covered, or unsteady."""
    command = Command(injection) if injected else None
    prompt = [*injection.token_ids, injection.token_ids[0]]
    tries: list[float] = []
    for number in range(1 + MOST_TRIES):
        started = clock()
        first = await door.first_logprobs(prompt, command)
        if injected and first.covered < len(injection.token_ids):
            return None
        if number > 0:  # the first warms up
            tries.append(1e3 * (clock() - started))
        if is_steady(tries):
            return min(tries)
    return None


def is_steady(tries: Sequence[float]) -> bool:
    """Do the two fastest tell the same?"""
    fastest = sorted(tries)[:2]
    return len(fastest) == 2 and fastest[1] <= STEADY * fastest[0]
