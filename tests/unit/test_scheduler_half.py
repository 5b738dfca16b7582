"""Replays of what both model runners send: claims are verified, loads and captures use the blocks of their own step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.command import PARAMS_KEY, Capture, Command, Injection, to_params
from inferscale_server.engine.scheduler_half import SchedulerHalf, StepCommands, common_prefix, scheduled_of

from .builders import SECRET, extents

BLOCK = 4
ROWS = 1_000
MEMORY = tuple(range(100, 110))  # ten tokens, in slab rows 50 … 59
PROMPT = [*MEMORY, 1, 2, 3]
INJECT = Command(Injection(MEMORY, extents((50, 10))))


@dataclass
class Request:
    """vLLM's Request, as far as it is read."""

    request_id: str
    prompt_token_ids: list[int] | None
    kv_transfer_params: dict[str, Any] | None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids or ())


@dataclass
class NewRequest:
    req_id: str
    num_computed_tokens: int


@dataclass
class CachedRequests:
    req_ids: list[str] = field(default_factory=list)
    num_computed_tokens: list[int] = field(default_factory=list)
    resumed_req_ids: set[str] = field(default_factory=set)


@dataclass
class SchedulerOutput:
    num_scheduled_tokens: dict[str, int]
    scheduled_new_reqs: list[NewRequest] = field(default_factory=list)
    scheduled_cached_reqs: CachedRequests = field(default_factory=CachedRequests)


class Engine:
    """The scheduler around the half: hands out blocks and builds the lists of a step as V1 or V2 would."""

    def __init__(self, runner: str = "V1") -> None:
        self.half = SchedulerHalf(BLOCK, ROWS, SECRET)
        self.tables: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.resumed: set[str] = set()
        self._known: set[str] = set()
        self._runner = runner

    def arrive(self, request: Request) -> Request:
        self.half.arrived(request)
        return request

    def admit(self, request: Request, blocks: Sequence[int], hit: int = 0) -> int:
        """From waiting to running, fresh or resumed, with a local prefix-cache hit. Returns the claim."""
        claimed = self.half.claim(request, hit)
        self.tables[request.request_id] = list(blocks)
        self.half.allocated(request, claimed)
        self.computed[request.request_id] = hit + claimed
        return claimed

    def step(self, **scheduled: int) -> StepCommands:
        """One step over running requests: tokens by request id."""
        output = SchedulerOutput(dict(scheduled))
        for name in scheduled:
            fresh = name not in self._known
            if fresh or (self._runner == "V2" and name in self.resumed):
                output.scheduled_new_reqs.append(NewRequest(name, self.computed[name]))
            else:
                output.scheduled_cached_reqs.req_ids.append(name)
                output.scheduled_cached_reqs.num_computed_tokens.append(self.computed[name])
        output.scheduled_cached_reqs.resumed_req_ids = self.resumed & set(scheduled)
        self.resumed -= set(scheduled)
        self._known |= set(scheduled)
        commands = self.half.step(scheduled_of(output), self.tables.__getitem__)
        for name, tokens in scheduled.items():
            self.computed[name] += tokens
        return commands

    def preempt(self, name: str) -> None:
        self.tables[name], self.computed[name] = [], 0
        self.resumed.add(name)


def chat(name: str = "chat", command: Command = INJECT, prompt: list[int] | None = None) -> Request:
    return Request(name, PROMPT if prompt is None else prompt, to_params(command, SECRET))


def slots_of(blocks: Sequence[int], positions: Sequence[int]) -> list[int]:
    return [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in positions]


@pytest.fixture(params=["V1", "V2"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The scheduler of either model runner."""
    return Engine(request.param)


def test_a_new_request_loads_its_memory_into_its_own_blocks(engine: Engine) -> None:
    assert engine.admit(engine.arrive(chat()), [7, 9, 3, 8]) == 10
    (load,) = engine.step(chat=3).loads
    assert load.rows.tolist() == list(range(50, 60)) and load.positions.tolist() == list(range(10))
    assert load.slots.tolist() == slots_of([7, 9, 3], range(10)) and load.blocks == {7, 9, 3}


def test_a_claim_is_loaded_once(engine: Engine) -> None:
    engine.admit(engine.arrive(chat()), [7, 9, 3, 8])
    engine.step(chat=2)
    assert engine.step(chat=1) == StepCommands()
    assert engine.half.unscheduled_claims() == 0


def test_a_resumed_request_loads_again_into_its_new_blocks(engine: Engine) -> None:
    request = engine.arrive(chat())
    engine.admit(request, [7, 9, 3, 8])
    engine.step(chat=3)
    engine.preempt("chat")
    assert engine.admit(request, [20, 21, 22, 23]) == 10
    (load,) = engine.step(chat=4).loads
    assert load.slots.tolist() == slots_of([20, 21, 22], range(10)) and load.blocks == {20, 21, 22}


def test_a_resumed_request_that_hits_its_own_blocks_loads_only_the_rest(engine: Engine) -> None:
    request = engine.arrive(chat())
    engine.admit(request, [7, 9, 3, 8])
    engine.step(chat=3)
    engine.preempt("chat")
    assert engine.admit(request, [7, 9, 22, 23], hit=8) == 2
    (load,) = engine.step(chat=4).loads
    assert load.positions.tolist() == [8, 9] and load.rows.tolist() == [58, 59] and load.blocks == {22}
    assert engine.half.finished("chat") == {PARAMS_KEY: {"planned": 10, "covered": 10}}


def test_a_claim_is_the_same_however_often_it_is_asked() -> None:
    engine = Engine()
    request = engine.arrive(chat())
    assert {engine.half.claim(request, 4) for _ in range(40)} == {6}
    assert engine.half.step([], lambda name: []) == StepCommands() and engine.half.unscheduled_claims() == 0


def test_one_token_is_left_to_compute() -> None:
    engine = Engine()
    assert engine.half.claim(engine.arrive(chat(prompt=list(MEMORY))), 0) == 9


@pytest.mark.parametrize("hit", [10, 12, 400])
def test_a_local_hit_beyond_the_plan_claims_nothing(hit: int) -> None:
    engine = Engine()
    assert engine.half.claim(engine.arrive(chat()), hit) == 0


@pytest.mark.parametrize("differs_at", range(11))
def test_a_prompt_that_differs_at_a_token_is_claimed_exactly_up_to_it(differs_at: int) -> None:
    engine = Engine()
    prompt = [token if position != differs_at else -1 for position, token in enumerate(PROMPT)]
    request = engine.arrive(chat(prompt=prompt))
    assert engine.admit(request, [7, 9, 3, 8]) == min(differs_at, 10)
    engine.step(chat=13 - min(differs_at, 10))
    assert engine.half.finished("chat") == {PARAMS_KEY: {"planned": 10, "covered": min(differs_at, 10)}}


def test_children_of_one_request_are_followed_one_by_one(engine: Engine) -> None:
    first, second = engine.arrive(chat("0_chat")), engine.arrive(chat("1_chat"))
    assert engine.admit(first, [1, 2, 3, 4]) == 10 and engine.admit(second, [1, 2, 13, 14], hit=8) == 2
    loads = engine.step(**{"0_chat": 3, "1_chat": 3}).loads
    assert [load.blocks for load in loads] == [{1, 2, 3}, {13}]
    assert engine.half.finished("0_chat") == engine.half.finished("1_chat")


def test_a_request_aborted_while_it_waits_leaves_nothing() -> None:
    engine = Engine()
    request = engine.arrive(chat())
    engine.half.claim(request, 0)
    assert engine.half.finished("chat") == {PARAMS_KEY: {"planned": 10, "covered": 0}}
    assert engine.half.claim(request, 0) == 0 and engine.half.finished("chat") is None


def test_blocks_that_slid_out_of_the_window_are_not_written(engine: Engine) -> None:
    engine.admit(engine.arrive(chat()), [0, 9, 3, 8])
    (load,) = engine.step(chat=3).loads
    assert load.positions.tolist() == list(range(4, 10)) and load.rows.tolist() == list(range(54, 60))
    assert load.blocks == {9, 3}


# Capture

FACT = Command(Injection(MEMORY, extents((50, 10))), (Capture(7, 10, extents((200, 4), (300, 5))),))
FACT_PROMPT = [*MEMORY, *range(11, 20), 11, 11]


def test_a_capture_over_several_steps_covers_each_position_once(engine: Engine) -> None:
    engine.admit(engine.arrive(chat("fact", FACT, FACT_PROMPT)), [2, 4, 6, 8, 10, 12])
    steps = [engine.step(fact=tokens) for tokens in (3, 1, 4, 3)]
    captures = [capture for commands in steps for capture in commands.captures]
    assert [p for c in captures for p in c.positions.tolist()] == list(range(10, 19))
    assert [r for c in captures for r in c.rows.tolist()] == [200, 201, 202, 203, 300, 301, 302, 303, 304]
    slots = slots_of([2, 4, 6, 8, 10, 12], range(10, 19))
    assert [s for c in captures for s in c.slots.tolist()] == slots
    assert {s for c in captures for s in c.stamps.tolist()} == {7}


def test_captured_slots_come_from_the_block_table_of_their_step(engine: Engine) -> None:
    request = engine.arrive(chat("fact", FACT, FACT_PROMPT))
    engine.admit(request, [2, 4, 6, 8, 10, 12])
    engine.step(fact=4)
    engine.preempt("fact")
    engine.admit(request, [31, 32, 33, 34, 35, 36])
    (capture,) = engine.step(fact=11).captures
    assert capture.positions.tolist() == list(range(10, 19))
    assert capture.slots.tolist() == slots_of([31, 32, 33, 34, 35, 36], range(10, 19))


def test_spare_tokens_are_not_captured(engine: Engine) -> None:
    engine.admit(engine.arrive(chat("fact", FACT, FACT_PROMPT)), [2, 4, 6, 8, 10, 12])
    engine.step(fact=9)
    assert engine.step(fact=2).captures == ()


def test_positions_that_came_from_the_prefix_cache_are_not_captured(engine: Engine) -> None:
    engine.admit(engine.arrive(chat("fact", FACT, FACT_PROMPT)), [2, 4, 6, 8, 10, 12], hit=12)
    (capture,) = engine.step(fact=9).captures
    assert capture.positions.tolist() == list(range(12, 19)) and capture.rows[0] == 202


@settings(max_examples=100)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=12), st.integers(0, 12), st.integers(1, 9))
def test_any_chunking_captures_what_was_computed(chunks: list[int], start: int, length: int) -> None:
    engine = Engine()
    command = Command(captures=(Capture(7, start, extents((200, length))),))
    prompt = list(range(sum(chunks)))
    engine.admit(engine.arrive(chat("fact", command, prompt)), range(1, len(prompt) + 1))
    seen = [p for tokens in chunks for c in engine.step(fact=tokens).captures for p in c.positions.tolist()]
    assert seen == list(range(start, min(start + length, len(prompt))))


# What is not ours, and what breaks


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"remote_block_ids": [1, 2]},
        {PARAMS_KEY: {"tokens": list(MEMORY), "rows": [50, 10], "captures": []}},
        {PARAMS_KEY: {"tokens": list(MEMORY), "rows": [50, 10], "captures": [], "mac": "0" * 64}},
        to_params(INJECT, b"a stranger's"),
        to_params(Command(Injection(MEMORY, extents((ROWS - 5, 10)))), SECRET),
    ],
    ids=["none", "empty", "foreign", "unsigned", "forged", "other secret", "rows out of range"],
)
def test_params_that_are_not_ours_claim_nothing(params: dict[str, Any] | None) -> None:
    engine = Engine()
    request = engine.arrive(Request("chat", PROMPT, params))
    assert engine.admit(request, [7, 9, 3, 8]) == 0
    assert engine.step(chat=13) == StepCommands() and engine.half.finished("chat") is None


def test_a_request_without_token_ids_claims_nothing() -> None:
    engine = Engine()
    assert engine.half.claim(engine.arrive(Request("chat", None, to_params(INJECT, SECRET))), 0) == 0


def test_after_a_fault_in_a_step_the_claimed_blocks_are_reported_and_no_others(engine: Engine) -> None:
    engine.admit(engine.arrive(chat("hit")), [1, 2, 13, 14], hit=8)
    engine.admit(engine.arrive(chat("cold")), [7, 9, 3, 8])
    engine.admit(engine.arrive(Request("plain", PROMPT, None)), [40, 41, 42, 43])

    def torn(name: str) -> list[int]:
        if name == "cold":
            raise KeyError(name)
        return engine.tables[name]

    names = ["hit", "cold", "plain"]
    with pytest.raises(KeyError):
        engine.half.step([(name, 10, 3) for name in names], torn)
    assert engine.half.lost(names, engine.tables.__getitem__) == StepCommands(lost_blocks=frozenset({13, 7, 9, 3}))
    assert engine.half.step([(name, 13, 1) for name in names], engine.tables.__getitem__) == StepCommands()


def test_a_claim_whose_allocation_was_not_noted_is_reported_as_lost(engine: Engine) -> None:
    request = engine.arrive(chat())
    claimed = engine.half.claim(request, 0)
    engine.tables["chat"], engine.computed["chat"] = [7, 9, 3, 8], claimed
    engine.half.unserved(request, claimed)
    assert engine.step(chat=3) == StepCommands(lost_blocks=frozenset({7, 9, 3}))
    assert engine.step(chat=1) == StepCommands()


def test_a_claim_that_no_step_serves_is_counted() -> None:
    engine = Engine()
    engine.admit(engine.arrive(chat()), [7, 9, 3, 8])
    engine.half.step([("other", 0, 5)], lambda name: [1])
    assert engine.half.unscheduled_claims() == 1


@given(st.lists(st.integers(0, 2), max_size=8), st.lists(st.integers(0, 2), max_size=8))
def test_the_common_prefix_agrees_with_a_slow_twin(a: list[int], b: list[int]) -> None:
    assert common_prefix(a, b) == max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])
