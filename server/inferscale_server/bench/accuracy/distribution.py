"""What a model thinks comes next at one position, and how far two such opinions are apart. Pure.

Only the likeliest tokens are known. The rest of the mass is lumped into one outcome, together with every token that
only one of the two names: a coarser view, under which the divergence can only shrink (data processing inequality). So
`kl` is a lower bound, exact up to the tail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

TINY = 1e-9
"""Less mass than this in the lumped tail is rounding."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The likeliest tokens, likeliest first, and the natural logarithms of their probabilities."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def first(self) -> int:
        """The likeliest token."""
        return self.token_ids[0]

    def by_token(self) -> Mapping[int, float]:
        """Log probability of each named token."""
        return dict(zip(self.token_ids, self.logprobs, strict=True))


def kl(reference: Distribution, other: Distribution) -> float:
    """Kullback-Leibler divergence KL(reference ‖ other) in nats, over what both name and one lump."""
    p, q = reference.by_token(), other.by_token()
    shared = p.keys() & q.keys()
    named = math.fsum(math.exp(p[token]) * (p[token] - q[token]) for token in shared)
    p_rest, q_rest = (max(1 - math.fsum(math.exp(of[t]) for t in shared), 0.0) for of in (p, q))
    if p_rest <= TINY:
        return max(named, 0.0)
    return max(named + p_rest * math.log(p_rest / max(q_rest, TINY)), 0.0)


def agree(one: Distribution, other: Distribution) -> bool:
    """The same likeliest token?"""
    return one.first == other.first
