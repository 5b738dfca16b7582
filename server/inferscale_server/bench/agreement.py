"""Do two answers to one prompt agree, token by token? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from inferscale_server.errors import Unavailable

LOGPROB_BELOW = 1e-3
"""The project's promise for one chunk that holds the whole memory, in float32."""


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the natural logarithms of the probabilities of the likeliest, itself included."""

    text: str
    logprobs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How two answers compare. `difference` is the largest of a logprob, over all tokens that both ranked."""

    check: str
    prompt: str
    tokens: int
    identical_tokens: int
    difference: float

    @property
    def holds(self) -> bool:
        """The same tokens, and logprobs closer than the bound?"""
        return self.tokens == self.identical_tokens and self.difference < LOGPROB_BELOW

    @property
    def words(self) -> str:
        """The figures in words."""
        return f"{self.identical_tokens} of {self.tokens} tokens identical, logprobs differ by {self.difference:.1e}"


def compare(check: str, prompt: str, one: Sequence[Token], other: Sequence[Token]) -> Agreement:
    """Compare two greedy answers. After the first token that differs they continue different texts: not compared."""
    pairs = list(zip(one, other, strict=False))
    same = len(list(takewhile(lambda pair: pair[0].text == pair[1].text, pairs)))
    differences = [_difference(*pair) for pair in pairs[: same + 1]]
    return Agreement(check, prompt, max(len(one), len(other)), same, max(differences, default=0.0))


def _difference(one: Token, other: Token) -> float:
    shared = one.logprobs.keys() & other.logprobs.keys()
    return max((abs(one.logprobs[text] - other.logprobs[text]) for text in shared), default=float("inf"))


def read_tokens(logprobs: Mapping[str, object] | None) -> tuple[Token, ...]:
    """The tokens of a chat choice's `logprobs`, in OpenAI's shape. Raises Unavailable when there are none."""
    content = (logprobs or {}).get("content")
    if not isinstance(content, list) or not content:
        raise Unavailable("the server sent an answer without logprobs")
    return tuple(
        Token(_name(part), {_name(p): p["logprob"] for p in [part, *part["top_logprobs"]]}) for part in content
    )


def _name(part: Mapping[str, object]) -> str:
    # Two halves of one character have the same text but not the same bytes.
    return repr(part.get("bytes") or part["token"])


def complaints(agreements: Iterable[Agreement]) -> list[str]:
    """One line for each pair of answers that do not agree."""
    return [f"{one.check}: {one.words}: {one.prompt}" for one in agreements if not one.holds]
