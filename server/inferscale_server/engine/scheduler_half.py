"""The scheduler's half of the connector: what to claim for a request, and which slots of this step to fill or capture.

Pure bookkeeping over numbers; knows neither tensors nor vLLM, so that tests replay recorded sequences of both model
runners. Rules (reasons in docs/structure.md): claim only tokens that equal the prompt's, leave one to compute, key
everything by request id, take block ids when they are used, let no slot outlive its step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from inferscale_server.command import PARAMS_KEY, Capture, Command, from_params, rows_of

IntArray = NDArray[np.int64]
NULL_BLOCK = 0
"""vLLM's placeholder for blocks that slid out of a window."""


class EngineRequest(Protocol):
    """The part of vLLM's Request that is read here."""

    request_id: str
    prompt_token_ids: list[int] | None
    num_prompt_tokens: int
    kv_transfer_params: dict[str, Any] | None


@dataclass(frozen=True)
class Load:
    """Slab rows to write into the paged cache before this step's forward; all arrays (n,) int64, one value a token."""

    rows: IntArray
    positions: IntArray
    slots: IntArray
    blocks: frozenset[int]


@dataclass(frozen=True)
class StepCapture:
    """Tokens computed in this step whose keys and values go to slab rows; arrays (n,), one value a token."""

    rows: IntArray
    positions: IntArray
    slots: IntArray
    stamps: IntArray


@dataclass(frozen=True)
class StepCommands:
    """All that the workers do in one step beside vLLM's own work. Immutable once returned."""

    loads: tuple[Load, ...] = ()
    captures: tuple[StepCapture, ...] = ()
    lost_blocks: frozenset[int] = frozenset()


@dataclass
class _Tracked:
    """A request with a command, from its arrival until it is finished, preemptions included."""

    command: Command
    matched: int  # tokens of the injection that equal the prompt's
    seen_computed: int = 0  # last local prefix-cache hit that the scheduler presented
    pending: tuple[int, int] | None = None  # claimed positions [start, stop) not yet loaded
    broken: bool = False  # the claim was granted, but it cannot be served
    covered: int | None = None  # fewest tokens that were in place before the first computed one


@dataclass
class SchedulerHalf:
    """State of the scheduler's half. One instance lives in vLLM's EngineCore."""

    block_size: int
    slab_rows: int
    secret: bytes
    _tracked: dict[str, _Tracked] = field(default_factory=dict)

    def arrived(self, request: EngineRequest) -> None:
        """Remember a request that carries a valid command; compare its tokens with the prompt's, once."""
        command = from_params(request.kv_transfer_params, self.secret, self.slab_rows)
        if command is None:
            return
        matched = 0
        if command.injection is not None and request.prompt_token_ids is not None:
            matched = common_prefix(command.injection.token_ids, request.prompt_token_ids)
        self._tracked[request.request_id] = _Tracked(command, matched)

    def claim(self, request: EngineRequest, num_computed: int) -> int:
        """How many tokens past `num_computed` come from the slab. Pure but for remembering what was asked."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return 0
        tracked.seen_computed = num_computed
        usable = min(tracked.matched, request.num_prompt_tokens - 1)
        return max(usable - num_computed, 0)

    def allocated(self, request: EngineRequest, num_external: int) -> None:
        """Blocks exist now: the claim becomes a load of the step that is being built."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        start = tracked.seen_computed
        covered = start + num_external
        tracked.covered = covered if tracked.covered is None else min(tracked.covered, covered)
        tracked.pending = (start, covered) if num_external > 0 else None

    def unserved(self, request: EngineRequest, num_external: int) -> None:
        """`allocated` failed after the claim was granted: the next step reports the blocks as lost."""
        tracked = self._tracked.get(request.request_id)
        if tracked is not None and num_external > 0:
            tracked.pending = (tracked.seen_computed, tracked.seen_computed + num_external)
            tracked.broken = True

    def step(
        self, scheduled: Sequence[tuple[str, int, int]], block_ids_of: Callable[[str], Sequence[int]]
    ) -> StepCommands:
        """Commands of one step.

        Args:
            scheduled: (request id, tokens already computed, tokens scheduled now) of every scheduled request.
            block_ids_of: the request's block table as it is now.
        """
        loads: list[Load] = []
        captures: list[StepCapture] = []
        lost: set[int] = set()
        served: list[_Tracked] = []
        for request_id, num_computed, num_scheduled in scheduled:
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            blocks = np.asarray(block_ids_of(request_id), dtype=np.int64)
            if tracked.pending is not None:
                if tracked.broken:
                    lost |= self._claimed_blocks(tracked.pending, blocks)
                else:
                    loads.append(self._load(tracked, blocks))
                served.append(tracked)
            captures += self._captures(tracked, blocks, num_computed, num_computed + num_scheduled)
        for tracked in served:  # only now: a fault above leaves every claim for `lost` to report
            tracked.pending, tracked.broken = None, False
        return StepCommands(tuple(loads), tuple(captures), frozenset(lost))

    def lost(self, scheduled: Sequence[str], block_ids_of: Callable[[str], Sequence[int]]) -> StepCommands:
        """After `step` failed: everything claimed and not loaded is reported as a failed load, nothing is captured."""
        blocks: set[int] = set()
        for request_id in scheduled:
            tracked = self._tracked.get(request_id)
            if tracked is not None and tracked.pending is not None:
                table = np.asarray(block_ids_of(request_id), dtype=np.int64)
                blocks |= self._claimed_blocks(tracked.pending, table)
                tracked.pending, tracked.broken = None, False
        return StepCommands(lost_blocks=frozenset(blocks))

    def _claimed_blocks(self, claim: tuple[int, int], blocks: IntArray) -> set[int]:
        start, stop = claim
        return set(blocks[start // self.block_size : -(-stop // self.block_size)].tolist()) - {NULL_BLOCK}

    def unscheduled_claims(self) -> int:
        """Claims that no step has served yet; after a step, each is a fault to be counted."""
        return sum(tracked.pending is not None for tracked in self._tracked.values())

    def finished(self, request_id: str) -> dict[str, Any] | None:
        """Forget a request; what it really got, for the API process, or None if it had no command."""
        tracked = self._tracked.pop(request_id, None)
        if tracked is None:
            return None
        injection = tracked.command.injection
        planned = 0 if injection is None else len(injection.token_ids)
        return {PARAMS_KEY: {"planned": planned, "covered": tracked.covered or 0}}

    def _load(self, tracked: _Tracked, blocks: IntArray) -> Load:
        assert tracked.command.injection is not None and tracked.pending is not None
        start, stop = tracked.pending
        positions = np.arange(start, stop, dtype=np.int64)
        rows = np.asarray(rows_of(tracked.command.injection.extents), dtype=np.int64)[start:stop]
        kept = blocks[positions // self.block_size] != NULL_BLOCK
        positions, rows = positions[kept], rows[kept]
        touched = frozenset(blocks[positions // self.block_size].tolist())
        return Load(rows, positions, self._slots(blocks, positions), touched)

    def _captures(self, tracked: _Tracked, blocks: IntArray, start: int, stop: int) -> list[StepCapture]:
        found = (self._capture(capture, blocks, start, stop) for capture in tracked.command.captures)
        return [capture for capture in found if capture is not None]

    def _capture(self, capture: Capture, blocks: IntArray, start: int, stop: int) -> StepCapture | None:
        first, last = max(start, capture.start), min(stop, capture.start + capture.length)
        if first >= last:
            return None
        rows = np.asarray(rows_of(capture.extents), dtype=np.int64)
        positions = np.arange(first, last, dtype=np.int64)
        here = rows[first - capture.start : last - capture.start]
        stamps = np.full(len(here), capture.stamp, dtype=np.int64)
        return StepCapture(here, positions, self._slots(blocks, positions), stamps)

    def _slots(self, blocks: IntArray, positions: IntArray) -> IntArray:
        return blocks[positions // self.block_size] * self.block_size + positions % self.block_size


def scheduled_of(scheduler_output: Any) -> list[tuple[str, int, int]]:
    """(request id, tokens computed before, tokens scheduled now) of each request of a step: new, resumed, running."""
    counts = scheduler_output.num_scheduled_tokens
    new = [(r.req_id, r.num_computed_tokens, counts[r.req_id]) for r in scheduler_output.scheduled_new_reqs]
    cached = scheduler_output.scheduled_cached_reqs
    running = [
        (req_id, computed, counts[req_id])
        for req_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    ]
    return new + running


def common_prefix(planned: Sequence[int], prompt: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    for position, (a, b) in enumerate(zip(planned, prompt, strict=False)):
        if a != b:
            return position
    return min(len(planned), len(prompt))
