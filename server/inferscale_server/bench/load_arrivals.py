"""When what arrives in an open loop, whatever the server does. Pure, and the same for every mode of one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Arrival:
    """A chat or, if `adds`, a fact to store, so many seconds after the start."""

    at_s: float
    adds: bool = False


def arrivals(rate_per_s: float, seconds: float, adds_share: float = 0.0, seed: int = 1) -> Iterator[Arrival]:
    """Independent arrivals (a Poisson process), a share of which are adds."""
    assert rate_per_s > 0 and 0 <= adds_share <= 1, f"rate {rate_per_s}, share {adds_share}"
    random, at_s = Random(seed), 0.0
    while (at_s := at_s + random.expovariate(rate_per_s)) < seconds:
        yield Arrival(at_s, random.random() < adds_share)
