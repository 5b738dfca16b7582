"""The start-up gate: does KV that was captured and injected answer like prefill, on this model, backend and dtype?

Runs once on the default header, which is encoded anyway. A red gate means text mode, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inferscale_server.catalog import Chunk
from inferscale_server.command import Command, Injection
from inferscale_server.engine.door import EngineDoor

TOLERANCE = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.25}
"""Largest difference of a log probability, by dtype: two prefills of one prompt in other batches differ by as much."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """`difference`: the largest absolute difference of the log probabilities that both runs list."""

    passed: bool
    difference: float
    tolerance: float
    covered: int


async def run_gate(door: EngineDoor, header: Chunk, question: Sequence[int], dtype: str) -> GateResult:
    """Ask the same prompt with the header prefilled and with the header injected.

    Args:
        header: a chunk that stands at the start of the prompt.
        question: token ids behind it.
    """
    prompt = [*header.token_ids, *question]
    command = Command(Injection(header.token_ids, header.extents))
    text = await door.first_logprobs(prompt, None)
    kv = await door.first_logprobs(prompt, command)
    common = text.logprobs.keys() & kv.logprobs.keys()
    difference = max((abs(text.logprobs[t] - kv.logprobs[t]) for t in common), default=float("inf"))
    tolerance = TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
    covered = kv.covered == len(header.token_ids)
    return GateResult(covered and difference <= tolerance, difference, tolerance, kv.covered)
