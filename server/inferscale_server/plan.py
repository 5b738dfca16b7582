"""The plan: what one chat request's prompt is, token by token, and which of it comes from the slab.

Pure: ask first (`plan_memory`), act later. Order of the memory: encoded facts, then texts that are not encoded yet,
because injected tokens can only extend a prefix; each worst to best unless told. Text mode gets the very same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from inferscale_server.catalog import Chunk
from inferscale_server.command import Injection
from inferscale_server.costs import Costs, Estimate
from inferscale_server.extents import first_rows
from inferscale_server.types import FactOrder, Mode, ServedMode

TEXT = "text"
"""The digest of a plan that injects nothing."""
CACHE_SLACK = 128
"""Tokens at the end of what was injected whose block may never have been full, so that no prefix cache holds it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The rendered prompt around the memory: ids before it (the header) and after it."""

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One text that may go into the prompt. `name` is its fact's id, or None for a caller's context; `seq` its age."""

    name: str | None
    text: str
    score: float | None
    token_ids: tuple[int, ...]
    chunk: Chunk | None
    seq: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What will be sent. `lines` in prompt order; `reason` is one of a fixed set of words (docs/modes.md).

    `header_tokens` stand before the memory; `expected_tokens` are those that only the prefix cache holds any more.
    """

    mode: ServedMode
    reason: str
    prompt_ids: tuple[int, ...]
    lines: tuple[MemoryLine, ...]
    injection: Injection | None
    chunks: tuple[Chunk, ...]
    memory_tokens: int
    digest: str
    estimate: Estimate | None = None
    """What was weighed, where `auto` had the choice."""
    header_tokens: int = 0
    expected_tokens: int = 0

    @property
    def injected_tokens(self) -> int:
        """Tokens planned to come from the slab, or from blocks that were filled from it; header included."""
        return self.expected_tokens if self.injection is None else len(self.injection.token_ids)


def fit(lines: Sequence[MemoryLine], room_tokens: int) -> tuple[MemoryLine, ...]:
    """The best lines (given best first) that fit into `room_tokens`."""
    kept: list[MemoryLine] = []
    for line in lines:
        if len(line.token_ids) <= room_tokens:
            kept.append(line)
            room_tokens -= len(line.token_ids)
    return tuple(kept)


def ordered(lines: Sequence[MemoryLine], order: FactOrder) -> list[MemoryLine]:
    """The lines (given best first) in prompt order. A caller's context keeps the order that the caller gave it."""
    if order == "best_last":
        return list(reversed(lines))
    context = [line for line in reversed(lines) if line.name is None]
    facts = [line for line in lines if line.name is not None]
    if order == "best_first":
        return [*context, *facts]
    return [*sorted(facts, key=lambda line: line.seq), *context]


def plan_memory(
    frame: Frame,
    lines: Sequence[MemoryLine],
    header: Chunk | None,
    mode: Mode,
    kv_refusal: str | None,
    tail: int = 0,
    order: FactOrder = "best_last",
) -> MemoryPlan:
    """Arrange the lines (given best first) and decide where their keys and values come from.

    Args:
        header: the chunk of exactly `frame.before`, or None when it is not encoded.
        kv_refusal: why this request cannot use KV, or None.
        tail: memory tokens at the end that are prefilled although they are encoded.
    """
    lines = ordered(lines, order)
    ready = [line for line in lines if line.chunk is not None]
    waiting = [line for line in lines if line.chunk is None]
    reason = _text_reason(mode, kv_refusal, header, ready, waiting)
    if reason is not None:
        return _plan("text", reason, frame, lines, (), tail)
    assert header is not None
    chunks = (header, *(line.chunk for line in ready if line.chunk is not None))
    return _plan("kv", "partly_encoded" if waiting else "encoded", frame, [*ready, *waiting], chunks, tail)


def resumed(plan: MemoryPlan, frame: Frame) -> MemoryPlan:
    """The same memory in a later prompt: what is injected, and the salt with it, stays what it was. Nothing is weighed:
    what the first prompt would have taken says nothing of this one."""
    memory = chain.from_iterable(line.token_ids for line in plan.lines)
    return replace(plan, prompt_ids=(*frame.before, *memory, *frame.after), estimate=None)


def foreseen(frame: Frame, lines: Sequence[MemoryLine], coming_tokens: int, tail: int, costs: Costs) -> Estimate:
    """Both ways of a prompt with these lines, if so many more of their tokens lay in the slab than do now."""
    header, memory = len(frame.before), sum(len(line.token_ids) for line in lines)
    ready = sum(len(line.token_ids) for line in lines if line.chunk is not None)
    injected = header + min(ready + coming_tokens, max(memory - tail, 0))
    return costs.estimate(header, injected, header + memory + len(frame.after))


def cheaper(plan: MemoryPlan, costs: Costs, header_tokens: int) -> MemoryPlan:
    """A plan that injects, or the same as text where the numbers say that computing it is faster."""
    estimate = costs.estimate(header_tokens, plan.injected_tokens, len(plan.prompt_ids))
    weighed = replace(plan, estimate=estimate)
    return without_injection(weighed, "text_cheaper") if estimate.text_is_cheaper else weighed


def from_cache(plan: MemoryPlan) -> MemoryPlan:
    """The same prompt under the same salt when rows of it are gone: the prefix cache is expected to hold the memory."""
    return replace(plan, injection=None, chunks=(), expected_tokens=max(plan.injected_tokens - CACHE_SLACK, 0))


def without_injection(plan: MemoryPlan, reason: str) -> MemoryPlan:
    """The very same tokens, all computed."""
    return replace(plan, mode="text", reason=reason, injection=None, chunks=(), digest=TEXT, expected_tokens=0)


def _text_reason(
    mode: Mode,
    refusal: str | None,
    header: Chunk | None,
    ready: Sequence[MemoryLine],
    waiting: Sequence[MemoryLine],
) -> str | None:
    if mode == "text":
        return "requested"
    if refusal is not None:
        return refusal
    if header is None:
        return "header_not_encoded"
    if ready:
        return None
    return "nothing_encoded" if waiting else "no_room"


def _plan(
    mode: ServedMode, reason: str, frame: Frame, lines: Sequence[MemoryLine], chunks: tuple[Chunk, ...], tail: int
) -> MemoryPlan:
    memory = tuple(chain.from_iterable([line.token_ids for line in lines]))
    injection = _injection(chunks, len(frame.before) + max(len(memory) - tail, 0)) if chunks else None
    return MemoryPlan(
        mode=mode,
        reason=reason,
        prompt_ids=(*frame.before, *memory, *frame.after),
        lines=tuple(lines),
        injection=injection,
        chunks=chunks,
        memory_tokens=len(memory),
        digest=_digest(chunks, injection),
        header_tokens=len(frame.before),
    )


def _injection(chunks: Sequence[Chunk], at_most: int) -> Injection:
    """The catalog's own token ids and rows, cut to `at_most` tokens; the engine compares them with the prompt's."""
    token_ids = tuple(chain.from_iterable([chunk.token_ids for chunk in chunks]))[:at_most]
    extents = list(chain.from_iterable([chunk.extents for chunk in chunks]))
    return Injection(token_ids, first_rows(extents, len(token_ids)))


def _digest(chunks: Sequence[Chunk], injection: Injection | None) -> str:
    """Names what is injected: the encodings (stamps are never used twice) and how many tokens of them."""
    if injection is None:
        return TEXT
    text = ",".join(str(chunk.stamp) for chunk in chunks) + f":{len(injection.token_ids)}"
    return hashlib.sha256(text.encode()).hexdigest()
