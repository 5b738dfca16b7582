"""How much farther from text a variant is than the nearest one, question by question. Pure.

Two variants are measured on the same questions, so their difference is known much better than either figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from inferscale_server.bench.accuracy.cell import Trio
from inferscale_server.bench.accuracy.estimate import Estimate, mean


@dataclass(frozen=True, slots=True)
class Gap:
    """KL of `variant` less that of `nearest`, over the questions that both were asked."""

    k: int
    nearest: str
    variant: str
    questions: int
    kl: Estimate

    @property
    def significant(self) -> bool:
        """Does the 95 % interval leave out nothing at all?"""
        return self.kl.low > 0 or self.kl.high < 0


def gaps(found: Sequence[Trio], seed: int) -> list[Gap]:
    """For each number of facts, every variant but the one with the least KL; nearest first."""
    made = []
    for k in sorted({trio.kv.k for trio in found}):
        by_variant: dict[str, dict[str, float]] = {}
        for trio in found:
            if trio.kv.k == k:
                by_variant.setdefault(trio.kv.variant, {})[trio.kv.case] = trio.kv.kl or 0.0
        nearest, *others = sorted(by_variant, key=lambda variant: fmean(by_variant[variant].values()))
        made += [_gap(k, nearest, other, by_variant, seed) for other in others]
    return [gap for gap in made if gap.questions]


def _gap(k: int, nearest: str, other: str, by_variant: dict[str, dict[str, float]], seed: int) -> Gap:
    near, far = by_variant[nearest], by_variant[other]
    differences = [far[case] - near[case] for case in sorted(near.keys() & far.keys())]
    kl = mean(differences, seed) if differences else Estimate(0.0, 0.0, 0.0)
    return Gap(k, nearest, other, len(differences), kl)
