"""`bench ttft`: time to first token over HTTP, as a client sees it, against the number of facts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from inferscale_server.bench.cell import Cell, Ratio, cells, complaints, ratios
from inferscale_server.bench.comparator import Comparator, ServerMemory
from inferscale_server.bench.conversation import Conversation
from inferscale_server.bench.encoding import Encoding, take_in
from inferscale_server.bench.injection_clock import injection_ms
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.overhead import INJECTED_TOKENS, Overhead, overheads
from inferscale_server.bench.probe import (
    RIVAL,
    Probe,
    different_questions,
    plan_probes,
    possible_fact_counts,
    questions_needed,
)
from inferscale_server.bench.sample import STAGES, Sample, cold
from inferscale_server.demo.server import Report

if TYPE_CHECKING:
    from inferscale_sdk import ChatResponse, InferScaleClient

WARM_UP_ROUNDS = 1
"""Every (number of facts, mode) once, not counted: the header's KV, compiled kernels, open connections."""
ANSWER_TOKENS = 2
INJECTIONS = 10
"""Answers by which injection is timed, with the most facts."""


@dataclass(frozen=True, slots=True)
class TtftRun:
    """What `bench ttft` found out. `samples` are all that were taken; cells and ratios are of the cold ones."""

    encoding: Encoding
    samples: tuple[Sample, ...]
    cells: tuple[Cell, ...]
    ratios: tuple[Ratio, ...]
    overheads: tuple[Overhead, ...]
    complaints: tuple[str, ...]


def run_ttft(
    client: InferScaleClient,
    conversation: Conversation,
    rounds: int,
    tell: Report,
    rival: Comparator | None = None,
    injections: bool = False,
) -> TtftRun:
    """Load the conversation for a user of its own, then time every probe. Raises ConfigError, and the SDK's errors when
    most probes of one kind fail; a few are counted.

    A rival holds the conversation already; its probes are timed from its own search on. `injections`: also have the
    workers' clocks timed, which takes most of a minute.
    """
    warm_up, counted = plan(conversation, rounds, rival is not None)
    user = new_user()
    encoding = take_in(client, user, conversation.facts, tell)
    losses = Losses()

    def taken(probes: Sequence[Probe], doing: str, kind: Callable[[Probe], str]) -> list[Sample]:
        samples = []
        for at, probe in enumerate(probes, 1):
            tell(f"{doing} {at} of {len(probes)}: {probe.kind}")
            take = partial(take_sample, client, asked_system(probe, user, rival), probe)
            if (sample := losses.tried(kind(probe), take)) is not None:
                samples.append(sample)
        return samples

    warm = taken(warm_up, "warming up, answer", lambda probe: WARM_UP)
    samples = taken(counted, "timing answer", lambda probe: probe.kind)
    for kind in dict.fromkeys(probe.kind for probe in counted):
        losses.check(kind)
    injected_ms = timed_injection(client, user, counted, tell, losses) if injections else None
    return summary(encoding, samples, warm, losses, injected_ms)


def timed_injection(
    client: InferScaleClient, user: str, counted: Sequence[Probe], tell: Report, losses: Losses
) -> float | None:
    """Worker milliseconds of INJECTED_TOKENS; None when the server does not tell.

    Asks as KV what was asked as text, so that no block of it is in the prefix cache.
    """
    tell("timing injections by the workers' clocks")
    largest = max(probe.k for probe in counted)
    as_text = [probe for probe in counted if (probe.mode, probe.k) == ("text", largest)][:INJECTIONS]
    probes = [replace(probe, mode="kv") for probe in as_text]

    def ask() -> None:
        for probe in probes:
            losses.tried("timing injections", partial(take_sample, client, ServerMemory(user, "kv"), probe))

    return injection_ms(client, ask, INJECTED_TOKENS)


def asked_system(probe: Probe, user: str, rival: Comparator | None) -> Comparator:
    """Whom a probe asks: the server's memory of the user, or the rival."""
    return rival if rival is not None and probe.mode == RIVAL else ServerMemory(user, probe.mode)


def questions_of_run(conversation: Conversation, rounds: int, rival: bool = False) -> int:
    """How many different questions a run asks. Raises ConfigError for fewer facts than can be asked about."""
    return questions_needed(possible_fact_counts(len(conversation.facts)), WARM_UP_ROUNDS + rounds, rival)


def plan(conversation: Conversation, rounds: int, rival: bool = False) -> tuple[list[Probe], list[Probe]]:
    """The probes that warm up and those that count, without a question in common. Raises ConfigError."""
    fact_counts = possible_fact_counts(len(conversation.facts))
    for_warm_up = questions_needed(fact_counts, WARM_UP_ROUNDS, rival)
    needed = questions_of_run(conversation, rounds, rival)
    questions = different_questions([question.text for question in conversation.questions], needed)
    counted = plan_probes(questions, fact_counts, rounds, rival)
    return plan_probes(questions[-for_warm_up:], fact_counts, WARM_UP_ROUNDS, rival), counted


def summary(
    encoding: Encoding,
    samples: Sequence[Sample],
    warm_up: Sequence[Sample],
    losses: Losses,
    injection_ms: float | None = None,
) -> TtftRun:
    """Cells, ratios, overheads and complaints of the samples; `injection_ms` is the workers' for INJECTED_TOKENS."""
    kept = cold(samples, warm_up)
    found = cells(kept, losses)
    return TtftRun(
        encoding,
        tuple(samples),
        tuple(found),
        tuple(ratios(found)),
        tuple(overheads(kept, injection_ms)),
        (*complaints(samples, found), *losses.complaints),
    )


def take_sample(client: InferScaleClient, system: Comparator, probe: Probe) -> Sample:
    """Time one streamed answer, the system's own retrieval included. Read to its end."""
    start = time.perf_counter()
    asked = system.prompted(probe.question, probe.k)
    with client.chat(
        asked.user,
        messages=asked.messages,
        stream=True,
        memory={"mode": asked.mode, "k": asked.k},
        temperature=0,
        max_tokens=ANSWER_TOKENS,
    ) as stream:
        next(stream.text_stream, None)
        ttft_ms = 1e3 * (time.perf_counter() - start)
        response = stream.get_final_response()
    return sample_of(probe, asked.mode, ttft_ms, response)


def sample_of(probe: Probe, asked: str, ttft_ms: float, response: ChatResponse) -> Sample:
    """What the server said about its answer, beside what the client measured."""
    told = response.raw["inferscale"]
    assert isinstance(told, Mapping), f"inferscale is {told!r}"
    return Sample(
        k=probe.k,
        mode=probe.mode,
        served=probe.mode if response.mode == asked else response.mode or "",
        reason=response.reason or "",
        ttft_ms=ttft_ms,
        stages_ms={stage: response.timings_ms[stage] for stage in STAGES if stage in response.timings_ms},
        memory_tokens=int(told["memory_tokens"]),
        memory_as_text=response.kv_source.get("text", 0),
        injected_tokens=response.injected_tokens,
        prefilled_tokens=response.prefilled_tokens,
        facts=tuple(fact.id or "" for fact in response.facts),
        kv_source=dict(response.kv_source),
    )


def new_user() -> str:
    """A user that no server has seen, so that nobody's facts are touched on one that runs already."""
    return f"bench-{uuid.uuid4().hex}"
