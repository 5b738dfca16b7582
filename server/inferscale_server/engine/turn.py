"""One chat request on its way, and what its answer says of it.

Knows: plan, flight and session of the request. Refuses to know: how it is prepared and run (chat.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferscale_server.brain import Brain
from inferscale_server.costs import Estimate
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.door import Flight
from inferscale_server.engine.heard import Heard
from inferscale_server.plan import MemoryLine, MemoryPlan
from inferscale_server.session_recall import SessionTold
from inferscale_server.staged_plan import tokens_by_source
from inferscale_server.staging import ColdTier
from inferscale_server.types import ServedMode


@dataclass
class Turn:
    """What was asked, what was found, what is sent."""

    ask: ChatMemory
    mode: ServedMode
    reason: str
    request: Any
    flight: Flight
    heard: Heard
    plan: MemoryPlan | None = None
    shown: tuple[MemoryLine, ...] = ()
    session: SessionTold | None = None
    staged: Mapping[int, ColdTier] = field(default_factory=dict)  # where chunks were before this chat, by stamp
    timings_ms: dict[str, float] = field(default_factory=dict)

    @property
    def recalled(self) -> tuple[str, ...]:
        """The memories that it is answered with."""
        return tuple(line.text for line in self.shown)


def provenance(turn: Turn, brain: Brain) -> Mapping[str, Any]:
    """The `inferscale` field of the answer. Counts the request, and queues what is to be remembered: call it once."""
    injected = _counted(turn, brain)
    shown = _shown(turn, injected) | {"footprint": brain.kv_bytes(turn.ask.owner)}
    if not turn.ask.remember:
        return shown
    return shown | {"remember": turn.heard.keep(brain, turn.recalled)}


def _counted(turn: Turn, brain: Brain) -> int:
    """Tell the metrics; returns how many tokens were injected."""
    flight, planned = turn.flight, 0 if turn.plan is None else turn.plan.injected_tokens
    injected = flight.covered(planned)
    if injected < planned:
        brain.metrics.claimed_short()
    brain.note_faults("scheduler", flight.scheduler_faults)
    brain.metrics.served(turn.mode, turn.reason, injected, flight.prefilled_tokens)
    brain.metrics.served_from(_source(turn, injected))
    return injected


def _shown(turn: Turn, injected: int) -> dict[str, Any]:
    flight, plan = turn.flight, turn.plan
    return {
        "mode": turn.mode,
        "reason": turn.reason,
        "facts": [_fact(line, turn.ask.include_text) for line in _best_first(turn.shown)],
        "injected_tokens": injected,
        "prefilled_tokens": flight.prefilled_tokens,
        "memory_tokens": _shown_tokens(turn) if plan is None else plan.memory_tokens,
        "frame_tokens": 0 if plan is None else len(plan.prompt_ids) - plan.memory_tokens,
        "kv_source": _source(turn, injected),
        "timings_ms": {**turn.timings_ms, "ttft": flight.first_token_ms},
        **({} if plan is None or plan.estimate is None else {"estimated_ms": _estimated(plan.estimate)}),
        **({} if turn.session is None else {"session": _told(turn.session)}),
    }


def _fact(line: MemoryLine, include_text: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": line.name, "score": line.score}
    return shown | {"text": line.text} if include_text else shown


def _best_first(lines: Sequence[MemoryLine]) -> list[MemoryLine]:
    """The facts among them; of equal ones, the one nearer to the end."""
    return sorted((line for line in reversed(lines) if line.name), key=lambda line: -(line.score or 0.0))


def _estimated(estimate: Estimate) -> dict[str, float]:
    """What `auto` weighed."""
    return {"kv": round(estimate.kv_ms, 1), "text": round(estimate.text_ms, 1)}


def _told(session: SessionTold) -> dict[str, Any]:
    """Which facts stood in the block, and which were noted as text."""
    return {
        "state": session.state,
        "reason": session.reason,
        "turn": session.turn,
        "block": sorted(session.block),
        "noted": [one.name for one in session.noted if one.name is not None],
    }


def _shown_tokens(turn: Turn) -> int:
    """Tokens of memory that stands in a message."""
    return sum(len(line.token_ids) for line in turn.shown)


def _source(turn: Turn, injected: int) -> dict[str, int]:
    """Tokens by where their KV was when the chat came; text: memory that was computed."""
    if turn.plan is None:
        return {"device": 0, "host": 0, "disk": 0, "text": _shown_tokens(turn)}
    return tokens_by_source(turn.plan, turn.staged, injected)
