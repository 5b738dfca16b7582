"""Ten questions to a model whose opinions are powers of two, so that every figure can be worked out by hand.

Each answer is two tokens. Per token, in units of ln 2: without memory 3 nats, as text 1. As KV the five single-hop
questions have 1, like text, and the same distribution; the five multi-hop ones have 2, and the two likeliest tokens
changed places.

    recovered     all (3 - 1.5) / (3 - 1) = 0.75, single-hop 1, multi-hop 0.5
    KL            multi-hop 1/2 ln(1/2 : 1/4) + 1/4 ln(1/4 : 1/2) = ln 2 / 4, single-hop 0, all ln 2 / 8
    agreement     multi-hop 0, single-hop 1, all 0.5
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.accuracy.opinion import LEAD_INS, Opinion, read_opinion
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.demo.server import Report
from inferscale_server.errors import Unavailable

LN2 = math.log(2)
MEMORY_TOKENS = 30
CASES = tuple(
    Case(f"ten/{at}", f"Question {at}?", f"answer {at}", "multi-hop" if at % 2 else "single-hop") for at in range(10)
)
TEN = Haystack("ten", (DatedFact("A fact."),), CASES)
FIRST, SECOND, OTHER = 5, 6, 7

Token = dict[str, Any]


def is_multi_hop(question: str) -> bool:
    """Odd numbers."""
    return int(question.removeprefix("Question ").removesuffix("?")) % 2 == 1


def token(mode: str, question: str) -> Token:
    """One token of the answer, as the scoring route tells it."""
    if mode == "off":
        return {"token_id": FIRST, "logprob": -3 * LN2, "top_ids": [OTHER, SECOND], "top_logprobs": [-LN2, -2 * LN2]}
    if mode == "kv" and is_multi_hop(question):
        return {"token_id": FIRST, "logprob": -2 * LN2, "top_ids": [SECOND, FIRST], "top_logprobs": [-LN2, -2 * LN2]}
    return {"token_id": FIRST, "logprob": -LN2, "top_ids": [FIRST, SECOND], "top_logprobs": [-LN2, -2 * LN2]}


def told(mode: str, question: str, k: int, frame: str = "") -> dict[str, Any]:
    """The whole answer of the scoring route, in a frame of this name."""
    without = f"{frame}{question}"
    memory = 0 if mode == "off" else MEMORY_TOKENS
    injected = memory if mode == "kv" else 0
    return {
        "mode": mode,
        "facts": min(k, 1),
        "prompt_digest": without if mode == "off" else f"{without} {k}",
        "frame_digest": without,
        "prompt_tokens": 40 + memory,
        "memory_tokens": memory,
        "memory_as_text": memory - injected,
        "injected_tokens": injected,
        "endings": [[token(mode, question)] * 2 for _ in LEAD_INS],
    }


@dataclass
class TenQuestions:
    """The model, in this process. Questions in `broken` are not injected; `asked` are (question, mode, k)."""

    fingerprint: str = "f"
    broken: frozenset[str] = frozenset()
    changed: dict[str, int] = field(default_factory=dict)  # of what it tells of kv
    frame: str = ""
    answers: bool = False
    asked: list[tuple[str, str, int]] = field(default_factory=list)
    taken_in: int = 0
    users: set[str] = field(default_factory=set)

    @property
    def about(self) -> Mapping[str, object]:
        """What its rows depend on."""
        return {"fingerprint": self.fingerprint, "machine": {"asked": len(self.asked)}}

    def take_in(self, facts: Sequence[DatedFact], tell: Report) -> str:
        """Counts."""
        self.taken_in += 1
        self.users.add(user := f"user {self.taken_in}")
        return user

    def let_go(self, user: str) -> None:
        """Each user once."""
        self.users.remove(user)

    def opinion(self, user: str, case: Case, mode: str, k: int) -> Opinion:
        """What `told` says."""
        self.asked.append((case.question, mode, k))
        if mode == "kv" and case.question in self.broken:
            raise Unavailable("the memory is not all encoded: nothing_encoded")
        assert user in self.users
        answer = "I do not know." if mode == "off" else f"The answer {case.question.removeprefix('Question ')[:1]}."
        changed = self.changed if mode == "kv" else {}
        own = {"answer": answer if self.answers else None}
        return read_opinion(told(mode, case.question, k, self.frame) | changed | own)
