"""`POST /v1/inferscale/admin/score`: what the model thinks of a given answer, for `inferscale bench accuracy`.

Knows: the JSON of it. Refuses to know: how it is found out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from inferscale_server.edge.wire import K, Query, Wire
from inferscale_server.limits import MAX_FACT_CHARS
from inferscale_server.types import Owner

MAX_ENDINGS = 8
MAX_TOP = 1_000
MAX_LEAD_IN_CHARS = 1_000
MAX_ANSWER_TOKENS = 1_024


class EndingWire(Wire):
    """How an answer begins, not scored, and the answer itself, scored token by token."""

    lead_in: Annotated[str, Field(max_length=MAX_LEAD_IN_CHARS)] = ""
    answer: Annotated[str, Field(min_length=1, max_length=MAX_FACT_CHARS)]


class ScoreWire(Wire):
    """Body of `POST …/score`. `top` is how many of the likeliest tokens are named at each position, `answer_tokens` how
    many tokens the model may also answer by itself, greedily, behind the very same prompt."""

    user_id: str
    question: Query
    endings: Annotated[list[EndingWire], Field(min_length=1, max_length=MAX_ENDINGS)]
    mode: Literal["off", "text", "kv"]
    k: K | None = None
    top: Annotated[int, Field(ge=1, le=MAX_TOP)] = 20
    answer_tokens: Annotated[int, Field(ge=0, le=MAX_ANSWER_TOKENS)] = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """An answer and the words before it, as text."""

    lead_in: str
    answer: str


@dataclass(frozen=True, slots=True)
class ScoreAsk:
    """Score these endings of one question's answer, with the owner's memory in this mode."""

    owner: Owner
    question: str
    endings: tuple[Ending, ...]
    mode: Literal["off", "text", "kv"]
    k: int | None
    top: int
    answer_tokens: int = 0

    @classmethod
    def of(cls, body: ScoreWire, owner: Owner) -> ScoreAsk:
        """What a client wrote, for the owner that it was allowed to name."""
        endings = tuple(Ending(one.lead_in, one.answer) for one in body.endings)
        return cls(owner, body.question, endings, body.mode, body.k, body.top, body.answer_tokens)


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of an answer: its natural log probability, and the likeliest tokens there, likeliest first."""

    token_id: int
    logprob: float
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScoreReply:
    """`prompt_digest` names the prompt's token ids, whatever mode they were computed in; counts are tokens.

    `frame_digest` is that of the same prompt without any fact, mode off's; `answer` is the model's own, where wanted.
    """

    mode: str
    facts: int
    prompt_digest: str
    prompt_tokens: int
    memory_tokens: int
    memory_as_text: int
    injected_tokens: int
    endings: tuple[tuple[ScoredToken, ...], ...]
    frame_digest: str = ""
    answer: str | None = None

    def body(self) -> dict[str, object]:
        """As JSON."""
        return asdict(self)


class Scorer(Protocol):
    """Whoever can ask the model."""

    async def score(self, ask: ScoreAsk) -> ScoreReply:
        """Raises Unavailable when kv was asked for and not all of the memory's encoded part was injected."""
