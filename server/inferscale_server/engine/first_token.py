"""What the gate reads of a request's first token. Imports no vLLM, so that whatever compares it is tested without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Log probabilities of the likeliest first tokens, how many prompt tokens were injected, and how many were not
    computed, injected or hit in the prefix cache."""

    logprobs: dict[int, float]
    covered: int
    cached: int = 0
