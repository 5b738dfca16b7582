"""A plan whose cold facts were brought up first, where a plan with them would inject them.

Joins recall and staging for chats and sessions alike. Refuses to know where facts were found and how frames are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from inferscale_server.plan import Frame, MemoryPlan
from inferscale_server.recall import Recall, Recollection
from inferscale_server.staging import ColdTier, Stager
from inferscale_server.types import Mode


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A plan, where its chunks were that were cold (by stamp), and the milliseconds that waiting and planning took."""

    plan: MemoryPlan
    staged: Mapping[int, ColdTier]
    stage_ms: float
    plan_ms: float


async def staged_plan(
    recall: Recall,
    stager: Stager,
    found: Recollection,
    frame: Frame,
    mode: Mode,
    room_tokens: int,
    refusal: str | None = None,
) -> StagedPlan:
    """Stage what is cold, unless text is served anyway, and plan. Without a step of the event loop when all is warm.

    Text that is cheaper than KV with its staging evicts nobody: what is cold stays where it is.
    """
    started = perf_counter()
    staged: Mapping[int, ColdTier] = {}
    stage_s = 0.0
    lines = recall.lines(found, room_tokens)
    coming = stager.coming(recall.wanted(found, frame, lines, mode, refusal))
    estimate = recall.weighed(frame, lines, mode, coming)
    if estimate is not None and estimate.text_is_cheaper:
        plan = recall.plan(found, frame, mode, room_tokens, "text_cheaper", lines)
        plan = replace(plan, estimate=estimate)
    else:
        if coming:
            asked = perf_counter()
            staged = await stager.bring(coming)
            stage_s = perf_counter() - asked
            lines = recall.lines(found, room_tokens)
        plan = recall.plan(found, frame, mode, room_tokens, refusal, lines)
    plan_s = perf_counter() - started - stage_s
    return StagedPlan(plan, staged, 1e3 * stage_s, 1e3 * plan_s)


def tokens_by_source(plan: MemoryPlan, staged: Mapping[int, ColdTier], injected: int) -> dict[str, int]:
    """Tokens of the header and the memory by where their KV was when the chat came; `text`: memory that was computed.

    `injected`: so many of the prompt's first tokens did not have to be computed.
    """
    found, left = {"device": 0, "host": 0, "disk": 0}, injected
    for chunk in plan.chunks:  # in the prompt's order
        tokens = min(len(chunk.token_ids), left)
        found[staged.get(chunk.stamp, "device")] += tokens
        left -= tokens
    found["device"] += left  # what only the prefix cache holds any more
    return found | {"text": plan.memory_tokens - max(injected - plan.header_tokens, 0)}
