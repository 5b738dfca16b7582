"""What a chat waits whose memory lies in a cold tier, and the ratios. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from inferscale_server.bench.cell import Ratio, percentile
from inferscale_server.bench.losses import Losses
from inferscale_server.bench.sample import Sample

OFF, TEXT, COLD, WARM = "off", "text", "cold", "warm"
ANSWERS = (OFF, TEXT, COLD, WARM)
"""Without memory; as text; as KV that lies in a cold tier; as KV once it was brought up."""
SOURCES = ("device", "host", "disk", "text")
COLD_OVER_TEXT_AT_MOST = 1.2


@dataclass(frozen=True, slots=True)
class TierCell:
    """One kind of answer. Milliseconds from asking to the first token; `tokens` by where their KV lay, means.

    `failed` requests had no answer.
    """

    answer: str
    answers: int
    ttft_ms: float
    ttft_p99_ms: float
    stage_ms: float
    tokens: Mapping[str, float]
    failed: int = 0


def tier_cells(samples: Mapping[str, Sequence[Sample]], losses: Losses | None = None) -> list[TierCell]:
    """One for each of ANSWERS that was given, with what was lost."""
    return [
        _cell(answer, samples[answer], losses.count(answer) if losses else 0)
        for answer in ANSWERS
        if samples.get(answer)
    ]


def _cell(answer: str, samples: Sequence[Sample], failed: int) -> TierCell:
    waits = [sample.ttft_ms for sample in samples]
    return TierCell(
        answer=answer,
        answers=len(samples),
        ttft_ms=median(waits),
        ttft_p99_ms=percentile(waits, 0.99),
        stage_ms=median(sample.stages_ms.get("stage", 0.0) for sample in samples),
        tokens={source: mean(sample.kv_source.get(source, 0) for sample in samples) for source in SOURCES},
        failed=failed,
    )


def tier_ratios(cells: Sequence[TierCell], tier: str) -> list[Ratio]:
    """A cold answer over the same memory as text; empty when one was not measured."""
    by_answer = {cell.answer: cell for cell in cells}
    if not {COLD, TEXT} <= by_answer.keys():
        return []
    cold, text = by_answer[COLD], by_answer[TEXT]
    return [
        Ratio(f"cold on {tier} / text", cold.ttft_ms / text.ttft_ms, COLD_OVER_TEXT_AT_MOST, False),
        Ratio(f"cold on {tier} / text, p99", cold.ttft_p99_ms / text.ttft_p99_ms, COLD_OVER_TEXT_AT_MOST, False),
    ]


def cold_cost_ms(cells: Sequence[TierCell]) -> float | None:
    """How much longer the median cold answer takes than a warm one; None when one was not measured."""
    waits = {cell.answer: cell.ttft_ms for cell in cells}
    return waits[COLD] - waits[WARM] if {COLD, WARM} <= waits.keys() else None


def tier_complaints(samples: Mapping[str, Sequence[Sample]], tier: str, users: int) -> Iterator[str]:
    """Why this run is no measurement."""
    cold = samples.get(COLD, ())
    if 2 * len(cold) < users:
        yield f"the memory of only {len(cold)} of {users} users lay on {tier} alone: take more users or a smaller slab"
    for answer, mode in ((OFF, "off"), (TEXT, "text"), (WARM, "kv")):
        if other := [sample for sample in samples.get(answer, ()) if sample.served != mode]:
            yield f"{len(other)} answers ({answer}) were served as {other[0].served or 'nothing'} ({other[0].reason})"
