"""What a server says that its model thinks of a gold answer, token by token. Pure: JSON in, values out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from inferscale_server.bench.accuracy.distribution import Distribution, agree, kl


@dataclass(frozen=True, slots=True)
class LeadIn:
    """Words that an answer begins with, not scored, and what stands between them and the answer."""

    text: str
    glue: str


LEAD_INS = (LeadIn("", ""), LeadIn("The answer is", " "))
"""Each answer is scored behind each, and the two are averaged: one way to begin may suit one mode by accident."""


@dataclass(frozen=True, slots=True)
class Position:
    """One token of the answer: its natural log probability, and the whole opinion there."""

    logprob: float
    distribution: Distribution


@dataclass(frozen=True, slots=True)
class Opinion:
    """One prompt with the answer forced behind it. `endings`: one a lead-in, of the answer's positions.

    `frame_digest` names the same prompt without facts; `answer` is the model's own, where it was asked for one.
    """

    prompt_digest: str
    facts: int
    memory_tokens: int
    memory_as_text: int
    injected_tokens: int
    endings: tuple[tuple[Position, ...], ...]
    frame_digest: str
    answer: str | None = None

    @property
    def nll(self) -> tuple[float, ...]:
        """For each lead-in: negative log likelihood of the answer, in nats a token."""
        return tuple(-fmean(position.logprob for position in ending) for ending in self.endings)

    @property
    def distributions(self) -> tuple[tuple[Distribution, ...], ...]:
        """What is kept to compare others with."""
        return tuple(tuple(position.distribution for position in ending) for ending in self.endings)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far an opinion is from text's: nats a position, and the share of positions with the same likeliest token.

    Means over all positions of the answer and both lead-ins.
    """

    kl: float
    agreement: float


def distance(text: Sequence[Sequence[Distribution]], kv: Sequence[Sequence[Distribution]]) -> Distance:
    """Compare the same positions of the same prompt."""
    pairs = [pair for a, b in zip(text, kv, strict=True) for pair in zip(a, b, strict=True)]
    return Distance(fmean(kl(a, b) for a, b in pairs), fmean(float(agree(a, b)) for a, b in pairs))


def endings_of(answer: str) -> list[dict[str, str]]:
    """The answer behind each lead-in, as the server takes it."""
    return [{"lead_in": lead_in.text, "answer": lead_in.glue + answer} for lead_in in LEAD_INS]


def read_opinion(told: Mapping[str, Any]) -> Opinion:
    """The answer of `POST /v1/inferscale/admin/score`."""
    counts = (told["facts"], told["memory_tokens"], told["memory_as_text"], told["injected_tokens"])
    endings = tuple(tuple(_position(token) for token in ending) for ending in told["endings"])
    return Opinion(told["prompt_digest"], *counts, endings, told["frame_digest"], told.get("answer"))


def _position(token: Mapping[str, Any]) -> Position:
    top = Distribution(tuple(token["top_ids"]), tuple(token["top_logprobs"]))
    return Position(token["logprob"], top)
