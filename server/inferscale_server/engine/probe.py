"""The gate's probes: each holds two ways to the same keys and values, or the same answer, against each other.

The filler is what makes far positions testable. In a prompt of one token over and over, attention mixes equal values,
so that whatever the weights are the result is that value again: hidden states, and with them the position-free keys of
*every* layer, are the same at every position, on every model whose positions live in its rotation alone. So the row of
one such token can stand at thousands of positions, and what is captured behind it must equal it again.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inferscale_server.catalog import Chunk
from inferscale_server.command import Command, Injection
from inferscale_server.engine.difference import Difference
from inferscale_server.engine.first_token import FirstToken
from inferscale_server.engine.probe_rows import CaptureDoor, ProbeRows, joined, last_rows
from inferscale_server.extents import first_rows

REPEATS = 8
"""Filler tokens captured at each distance."""
STORY_TOKENS, BEHIND_TOKENS = 32, 8
"""Tokens that are injected again at each distance, and those behind them that are compared."""
ROOM_TOKENS = 64
"""Kept free behind the farthest distance."""
ANSWER_TOLERANCE = {"float32": 1e-3, "float16": 0.1}
ANSWER_TOLERANCE_ELSE = 0.25
"""Largest difference of a log probability, by dtype: two prefills of one prompt in other batches differ by as much."""
KV_TOLERANCE = {"float32": 2e-3, "float16": 0.03}
KV_TOLERANCE_ELSE = 0.1
"""Largest relative difference of a layer's keys or values, by dtype."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What the probes must know of the engine. `dtype` is the model's; `quantised`: its cache or the slab rounds
    further, so that a difference far below the dtype's own can become one of their steps; `scores`: it survives being
    asked for a prompt's probabilities (vLLM's CPU build does not with LoRA switched on)."""

    dtype: str
    block_size: int
    max_model_len: int
    prefix_caching: bool
    quantised: bool = False
    scores: bool = True

    @property
    def answer_tolerance(self) -> float:
        """In log probability."""
        return ANSWER_TOLERANCE_ELSE if self.quantised else ANSWER_TOLERANCE.get(self.dtype, ANSWER_TOLERANCE_ELSE)

    @property
    def kv_tolerance(self) -> float:
        """Relative."""
        return KV_TOLERANCE_ELSE if self.quantised else KV_TOLERANCE.get(self.dtype, KV_TOLERANCE_ELSE)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`measured` must be at most `allowed`; `reason` is a sentence for the operator, None when the probe is green."""

    name: str
    measured: float
    allowed: float
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeText:
    """Token ids that the probes use: one for the filler, at least 40 of ordinary text, and a question's."""

    filler: int
    story: tuple[int, ...]
    question: tuple[int, ...]


class ProbeDoor(CaptureDoor, Protocol):
    """The part of the engine's door that the probes use."""

    async def first_logprobs(
        self, prompt_ids: Sequence[int], command: Command | None, salt: str | None = None
    ) -> FirstToken:
        """The distribution of the first token behind a prompt."""


async def probe_answer(door: ProbeDoor, header: Chunk, text: ProbeText, traits: EngineTraits) -> ProbeResult:
    """The same question behind the header, once prefilled and once injected: the same answer?"""
    prompt = (*header.token_ids, *text.question)
    plain = await door.first_logprobs(prompt, None)
    kv = await door.first_logprobs(prompt, Command(joined([header])))
    apart = logprobs_apart(plain, kv)
    if kv.covered != len(header.token_ids):
        said = f"{kv.covered} of the header's {len(header.token_ids)} tokens were injected"
        return ProbeResult("answer", math.inf, traits.answer_tolerance, said)
    return judged("answer", apart, traits.answer_tolerance, "an answer behind injected KV differs from prefill's")


def distances(max_model_len: int) -> tuple[int, ...]:
    """Filler tokens before what is compared: none, some, and as many as the server's longest context holds, which is
    past the original context of a scaled rotation."""
    farthest = max_model_len - STORY_TOKENS - BEHIND_TOKENS - ROOM_TOKENS
    wanted = (0, 17, farthest // 3, farthest)
    return tuple(dict.fromkeys(far for far in wanted if far >= 0))


async def probe_distances(rows: ProbeRows, text: ProbeText, traits: EngineTraits) -> list[ProbeResult]:
    """Rotation and injection, at several distances from the start."""
    repeated = await rows.capture(None, (text.filler,) * REPEATS)
    (first,) = first_rows(repeated.extents, 1)
    results = [_turned(0, await rows.difference(repeated.extents, (first,) * REPEATS), traits)]
    for far in distances(traits.max_model_len):
        filler = Injection((text.filler,) * far, (first,) * far) if far else None
        if filler is not None:
            there = await rows.capture(filler, (text.filler,) * REPEATS)
            results.append(_turned(far, await rows.difference(there.extents, repeated.extents), traits))
        results.append(await _probe_injected(rows, text, filler, traits))
    return results


async def _probe_injected(
    rows: ProbeRows, text: ProbeText, filler: Injection | None, traits: EngineTraits
) -> ProbeResult:
    """Text behind the filler, all computed; then the same with its beginning injected: the same keys and values of
    what follows?"""
    story, behind = text.story[:STORY_TOKENS], text.story[STORY_TOKENS : STORY_TOKENS + BEHIND_TOKENS]
    computed = await rows.capture(filler, (*story, *behind))
    begun = Injection(story, first_rows(computed.extents, len(story)))
    injected = await rows.capture(joined([begun] if filler is None else [filler, begun]), behind)
    apart = await rows.difference(injected.extents, last_rows(computed.extents, len(behind)))
    far = 0 if filler is None else len(filler.token_ids)
    said = f"text behind injected KV at position {far} has other keys and values than behind computed KV"
    return judged(f"injection at {far}", apart.worst, traits.kv_tolerance, said)


def _turned(far: int, apart: Difference, traits: EngineTraits) -> ProbeResult:
    said = f"keys taken at position {far} and freed of it are not those of position 0: the rotation is not understood"
    return judged(f"rotation at {far}", apart.worst, traits.kv_tolerance, said)


async def probe_prefix_cache(door: ProbeDoor, header: Chunk, text: ProbeText, traits: EngineTraits) -> ProbeResult:
    """Requests with other salts must share nothing, injected blocks included; those with one salt do, if caching is
    on."""
    prompt = (*header.token_ids, *text.question, *_repeated(text.story, traits.block_size + 1))
    if len(prompt) >= traits.max_model_len:
        return ProbeResult("prefix cache", 0.0, 0.0)
    command, salts = Command(joined([header])), [secrets.token_hex(32) for _ in range(2)]
    kv = await door.first_logprobs(prompt, command, salts[0])
    foreign = await door.first_logprobs(prompt, None, salts[1])
    own = [await door.first_logprobs(prompt, *how) for how in ((None, salts[1]), (command, salts[0]))]
    if foreign.cached or kv.cached != kv.covered:
        said = f"a request hit {foreign.cached or kv.cached - kv.covered} tokens of another salt in the prefix cache"
        return ProbeResult("prefix cache", foreign.cached or kv.cached - kv.covered, 0.0, said)
    missed = traits.prefix_caching and min(one.cached for one in own) < traits.block_size
    apart = max(logprobs_apart(foreign, own[0]), logprobs_apart(kv, own[1]))
    if missed:
        return ProbeResult("prefix cache", apart, traits.answer_tolerance, "a repeated prompt hit nothing of its own")
    return judged("prefix cache", apart, traits.answer_tolerance, "an answer behind cached blocks differs from before")


def judged(name: str, measured: float, allowed: float, said: str) -> ProbeResult:
    """Green when `measured` is within `allowed`; else red, with the figures behind the sentence."""
    if measured <= allowed:
        return ProbeResult(name, measured, allowed)
    return ProbeResult(name, measured, allowed, f"{said} (by {measured:.2g}; allowed {allowed:g})")


def logprobs_apart(one: FirstToken, other: FirstToken) -> float:
    """The largest difference of a log probability that both list; infinite when they share no token."""
    common = one.logprobs.keys() & other.logprobs.keys()
    return max((abs(one.logprobs[token] - other.logprobs[token]) for token in common), default=math.inf)


def _repeated(ids: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(ids[number % len(ids)] for number in range(count))
