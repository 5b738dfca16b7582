"""Medians of samples, the ratios between them, and what they prove. Pure.

A ratio has two bounds where the project has two: what is required of it, and the goal. Both are printed, met or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from inferscale_server.bench.losses import Losses
from inferscale_server.bench.probe import MODES, RIVAL, kind_of
from inferscale_server.bench.sample import STAGES, Sample

INJECTED_AT_LEAST = 0.99
"""Share of the memory's tokens that must come as KV, at the largest number of facts."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a ratio must reach, and what it is meant to reach."""

    required: float | None
    goal: float


TEXT_OVER_KV_AT_LEAST = Bounds(4.0, 6.0)
RIVAL_OVER_KV_AT_LEAST = Bounds(None, 5.0)
KV_GROWTH_AT_MOST = Bounds(1.5, 1.15)
KV_OVER_FLOOR_AT_MOST = Bounds(1.6, 1.35)


@dataclass(frozen=True, slots=True)
class Cell:
    """All samples of one (number of facts, mode). Times in milliseconds, counts in tokens, medians unless named."""

    k: int
    mode: str
    samples: int
    ttft_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    stages_ms: Mapping[str, float]
    outside_ms: float
    memory_tokens: int
    prefilled_tokens: int
    injected_share: float
    """Of all samples' memory tokens, how many came as KV; 0 where there is no memory."""
    failed: int = 0
    """Requests without an answer."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One ratio of this run beside its goal (`bound`) and, where there is one, the looser bound that is required."""

    name: str
    value: float
    bound: float
    at_least: bool
    required: float | None = None

    @property
    def met(self) -> bool:
        """Does it reach its goal?"""
        return self.keeps(self.bound)

    @property
    def wanted(self) -> str:
        """The goal in words."""
        return self.in_words(self.bound)

    def keeps(self, bound: float) -> bool:
        """Is it on the right side of this bound?"""
        return self.value >= bound if self.at_least else self.value <= bound

    def in_words(self, bound: float) -> str:
        """This bound for a person."""
        return f"{'at least' if self.at_least else 'at most'} {bound:g}"


def cells(samples: Iterable[Sample], losses: Losses | None = None) -> list[Cell]:
    """One cell for each (number of facts, mode asked for), in the order of MODES, the rival last."""
    groups: dict[tuple[int, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.k, sample.mode), []).append(sample)
    order = sorted(groups, key=lambda key: (key[0], (*MODES, RIVAL).index(key[1])))
    return [_cell(k, mode, groups[k, mode], losses.count(kind_of(k, mode)) if losses else 0) for k, mode in order]


def _cell(k: int, mode: str, samples: Sequence[Sample], failed: int) -> Cell:
    def middle(of: Callable[[Sample], float]) -> float:
        return median(of(sample) for sample in samples)

    memory = sum(sample.memory_tokens for sample in samples)
    as_text = sum(sample.memory_as_text for sample in samples)
    return Cell(
        k=k,
        mode=mode,
        samples=len(samples),
        ttft_ms=middle(lambda sample: sample.ttft_ms),
        ttft_p90_ms=percentile([sample.ttft_ms for sample in samples], 0.9),
        ttft_p99_ms=percentile([sample.ttft_ms for sample in samples], 0.99),
        stages_ms={stage: median(sample.stages_ms.get(stage, 0.0) for sample in samples) for stage in STAGES},
        outside_ms=middle(lambda sample: sample.outside_ms),
        memory_tokens=round(middle(lambda sample: sample.memory_tokens)),
        prefilled_tokens=round(middle(lambda sample: sample.prefilled_tokens)),
        injected_share=1 - as_text / memory if memory else 0.0,
        failed=failed,
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed (nearest rank)."""
    assert values and 0 < share <= 1, f"{len(values)} values, share {share}"
    return sorted(values)[math.ceil(share * len(values)) - 1]


def ratios(found: Sequence[Cell]) -> list[Ratio]:
    """What the bounds speak of, at the largest number of facts: against text, the smallest number, and the floor.

    A ratio whose cells were not measured is left out.
    """
    ttft_ms = {(cell.k, cell.mode): cell.ttft_ms for cell in found}
    smallest, largest = min(cell.k for cell in found), max(cell.k for cell in found)
    kv, text, floor, short = (largest, "kv"), (largest, "text"), (largest, "off"), (smallest, "kv")
    wanted = [
        (f"text / kv at k = {largest}", text, kv, TEXT_OVER_KV_AT_LEAST, True),
        (f"kv at k = {largest} / kv at k = {smallest}", kv, short, KV_GROWTH_AT_MOST, False),
        (f"kv at k = {largest} / no memory", kv, floor, KV_OVER_FLOOR_AT_MOST, False),
        (f"{RIVAL} / kv at k = {largest}", (largest, RIVAL), kv, RIVAL_OVER_KV_AT_LEAST, True),
    ]
    return [
        Ratio(name, ttft_ms[over] / ttft_ms[under], bounds.goal, at_least, bounds.required)
        for name, over, under, bounds, at_least in wanted
        if over in ttft_ms and under in ttft_ms
    ]


def complaints(samples: Sequence[Sample], found: Sequence[Cell]) -> list[str]:
    """Why this run is no measurement; empty when it is one. `samples` are all, `found` the cells of the cold ones."""
    return [*_served_otherwise(samples), *_never_cold(samples, found), *_too_little_injected(found)]


def _served_otherwise(samples: Sequence[Sample]) -> Iterator[str]:
    wrong = [sample for sample in samples if sample.served != sample.mode]
    if wrong:
        example = f"{wrong[0].mode} with k = {wrong[0].k} as {wrong[0].served or 'nothing'} ({wrong[0].reason})"
        yield f"{len(wrong)} of {len(samples)} answers were not served as asked for, such as {example}"


def _never_cold(samples: Sequence[Sample], found: Sequence[Cell]) -> Iterator[str]:
    measured = {(cell.k, cell.mode) for cell in found}
    for k, mode in dict.fromkeys((sample.k, sample.mode) for sample in samples):
        if (k, mode) not in measured:
            yield f"no answer of mode {mode} with k = {k} had a memory that was not in the prefix cache"


def _too_little_injected(found: Sequence[Cell]) -> Iterator[str]:
    injected = [cell for cell in found if cell.mode == "kv"]
    largest = max(injected, key=lambda cell: cell.k, default=None)
    if largest is not None and largest.injected_share < INJECTED_AT_LEAST:
        yield f"only {largest.injected_share:.1%} of the memory tokens were injected at k = {largest.k}"
