"""What `auto` chooses, and how the numbers for it are measured."""

from __future__ import annotations

import pytest

from inferscale_server.catalog import Chunk, ChunkKey
from inferscale_server.command import Command, Extent, rows_of
from inferscale_server.costs import Costs, Line, line_through
from inferscale_server.engine.calibration import LONG_TOKENS, MOST_TRIES, SHORT_TOKENS, calibrate, is_steady, repeated
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan, cheaper, plan_memory
from inferscale_server.types import Owner

SLOW_PREFILL = Costs(prefill=Line(20.0, 900.0), inject=Line(25.0, 20.0), block_tokens=16)
FAST_PREFILL = Costs(prefill=Line(20.0, 10.0), inject=Line(25.0, 20.0), block_tokens=16)
HEADER = Chunk(
    ChunkKey("header", Owner("local", ""), "h"), (1, 2, 3), (Extent(7, 2), Extent(3, 1)), frozenset(), "m", 1
)


class SteadyDoor:
    """An engine whose time grows evenly: 2 ms a token computed, 0.1 ms a token injected, 30 ms a request."""

    def __init__(self, loses: int = 0) -> None:
        self.now_s = 0.0
        self.loses = loses
        self.requests = 0

    def clock(self) -> float:
        return self.now_s

    async def first_logprobs(self, prompt: list[int], command: Command | None) -> SteadyDoor:
        injected = 0 if command is None or command.injection is None else len(command.injection.token_ids)
        self.covered = max(injected - self.loses, 0)
        self.requests += 1
        disturbed = 5.0 if self.requests % 3 else 0.0
        self.now_s += 1e-3 * (30.0 + 2.0 * (len(prompt) - injected) + 0.1 * injected + disturbed)
        return self


def planned(facts: int) -> MemoryPlan:
    """Facts of 30 tokens, all encoded."""
    lines = []
    for at in range(facts):
        ids = tuple(range(100 * at, 100 * at + 30))
        chunk = Chunk(
            ChunkKey("fact", Owner("local", "u"), str(at)), ids, (Extent(30 * at, 30),), frozenset(), "m", at + 2
        )
        lines.append(MemoryLine(str(at), "fact", 0.5, ids, chunk))
    return plan_memory(Frame((1, 2, 3), (9,) * 20), lines, HEADER, "auto", None)


@pytest.mark.parametrize("facts", [1, 50])
def test_kv_is_never_given_up_where_the_numbers_favour_it(facts: int) -> None:
    plan = cheaper(planned(facts), SLOW_PREFILL, 3)
    assert (plan.mode, plan.reason) == ("kv", "encoded") and plan.injection == planned(facts).injection
    assert plan.estimate is not None and plan.estimate.kv_ms < plan.estimate.text_ms


def test_text_that_is_cheaper_is_the_same_prompt_without_an_injection() -> None:
    plan, kv = cheaper(planned(50), FAST_PREFILL, 3), planned(50)
    assert (plan.mode, plan.reason, plan.injection, plan.chunks) == ("text", "text_cheaper", None, ())
    assert (plan.prompt_ids, plan.lines, plan.digest) == (kv.prompt_ids, kv.lines, "text")


def test_equal_costs_go_to_kv() -> None:
    same = Line(10.0, 0.0)
    assert cheaper(planned(5), Costs(same, same, 16), 3).mode == "kv"


def test_an_estimate_counts_what_is_left_to_compute_and_the_whole_cached_blocks_of_the_header() -> None:
    estimate = SLOW_PREFILL.estimate(header_tokens=40, injected_tokens=1040, prompt_tokens=1061)
    assert estimate.kv_ms == pytest.approx(25.0 + 1040 * 0.02 + 20 * 0.9)
    assert estimate.text_ms == pytest.approx(20.0 + (1061 - 32) * 0.9)


def test_a_line_through_noise_is_not_negative() -> None:
    assert line_through(10, 5.0, 20, 4.0) == Line(5.0, 0.0)
    assert line_through(10, 5.0, 20, 25.0) == Line(0.0, 2000.0)


async def test_calibration_finds_what_the_engine_takes_without_what_disturbs_it() -> None:
    door = SteadyDoor()
    costs = await calibrate(door, HEADER, 4096, 16, door.clock)  # type: ignore[arg-type]
    assert costs is not None and costs.block_tokens == 16
    assert (costs.prefill.us_per_token, costs.inject.us_per_token) == (pytest.approx(2000.0), pytest.approx(100.0))
    assert (costs.prefill.fixed_ms, costs.inject.fixed_ms) == (pytest.approx(32.0), pytest.approx(32.0))
    assert door.requests == 12


async def test_an_engine_that_did_not_inject_all_gives_no_numbers() -> None:
    door = SteadyDoor(loses=1)
    assert await calibrate(door, HEADER, 4096, 16, door.clock) is None  # type: ignore[arg-type]


class BusyDoor(SteadyDoor):
    """Beside other work: each request takes much longer than the one before."""

    async def first_logprobs(self, prompt: list[int], command: Command | None) -> SteadyDoor:
        self.now_s += 1.6**self.requests
        return await super().first_logprobs(prompt, command)


async def test_a_machine_too_busy_to_measure_on_gives_no_numbers() -> None:
    door = BusyDoor()
    assert await calibrate(door, HEADER, 4096, 16, door.clock) is None  # type: ignore[arg-type]
    assert door.requests == 1 + MOST_TRIES


@pytest.mark.parametrize(
    ("tries", "steady"), [((), False), ((5.0,), False), ((9.0, 5.0, 6.0), True), ((9.0, 5.0, 7.0), False)]
)
def test_two_fastest_tries_that_agree_are_believed(tries: tuple[float, ...], steady: bool) -> None:
    assert is_steady(tries) == steady


async def test_a_context_too_short_to_measure_in_gives_no_numbers() -> None:
    door = SteadyDoor()
    assert await calibrate(door, HEADER, 2 * SHORT_TOKENS, 16, door.clock) is None  # type: ignore[arg-type]
    assert door.requests == 0


@pytest.mark.parametrize("tokens", [1, 3, 7, LONG_TOKENS])
def test_the_measured_prompt_is_the_header_again_and_again(tokens: int) -> None:
    injection = repeated(HEADER, tokens)
    assert injection.token_ids == ((1, 2, 3) * tokens)[:tokens]
    assert rows_of(injection.extents) == ([7, 8, 3] * tokens)[:tokens]
