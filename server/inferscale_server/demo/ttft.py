"""Time to first token, as a client sees it, against the number of recalled facts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from inferscale_server.demo.conversations import Question

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

FACT_COUNTS = (5, 10, 20, 30)
TIMED_MODES = ("text", "kv")
QUESTIONS = 5
TOKENS = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed request. `ttft_ms` runs from sending it to the first piece of text, network and HTTP included."""

    mode: str
    k: int
    ttft_ms: float
    injected_tokens: int
    prefilled_tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the samples of one (mode, k)."""

    mode: str
    k: int
    ttft_ms: float
    injected_tokens: int
    prefilled_tokens: int


def measure(client: InferScaleClient, questions: Sequence[Question], k: int) -> list[Sample]:
    """Ask each question once in each mode, taking turns so that a drift of the machine hits both alike."""
    return [sample(client, question, mode, k) for question in questions for mode in TIMED_MODES]


def sample(client: InferScaleClient, question: Question, mode: str, k: int) -> Sample:
    """Time one streamed answer of a few tokens. The first piece is waited for; the rest is read to its end."""
    start = time.perf_counter()
    with client.chat(
        question.user, question.text, stream=True, memory={"mode": mode, "k": k}, temperature=0, max_tokens=TOKENS
    ) as stream:
        next(stream.text_stream, None)
        ttft_ms = (time.perf_counter() - start) * 1000
        response = stream.get_final_response()
    return Sample(response.mode or "", k, ttft_ms, response.injected_tokens, response.prefilled_tokens)


def rows(samples: Iterable[Sample]) -> list[Row]:
    """Medians per number of facts and mode served, in the order of `k`, text before kv."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for taken in samples:
        groups.setdefault((taken.k, taken.mode), []).append(taken)
    order = sorted(groups, key=lambda group: (group[0], group[1] == "kv"))
    return [_row(mode, k, groups[k, mode]) for k, mode in order]


def _row(mode: str, k: int, samples: Sequence[Sample]) -> Row:
    return Row(
        mode,
        k,
        median(taken.ttft_ms for taken in samples),
        round(median(taken.injected_tokens for taken in samples)),
        round(median(taken.prefilled_tokens for taken in samples)),
    )


def spread(questions: Sequence[Question], count: int) -> list[Question]:
    """`count` questions taken evenly, so that every user's memory is timed."""
    if count >= len(questions):
        return list(questions)
    return [questions[at * len(questions) // count] for at in range(count)]
