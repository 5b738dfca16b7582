"""`bench sessions`: what the turns of a conversation cost, with memory chosen anew each turn and kept in a session."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.comparator import Prompted, streamed_reply
from inferscale_server.bench.conversation import Conversation
from inferscale_server.bench.encoding import take_in
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.probe import different_questions
from inferscale_server.bench.session_cell import (
    FLOOR,
    KV_SESSION,
    TEXT,
    SessionCell,
    SessionTotal,
    TalkTurn,
    session_cells,
    session_complaints,
    session_ratios,
    session_totals,
)
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

WARM_UP_TURNS = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of memory: in which mode, and whether the conversation is a session."""

    name: str
    mode: str
    in_session: bool


KINDS = (
    Kind(FLOOR, "off", False),
    Kind(TEXT, "text", False),
    Kind("text, session", "text", True),
    Kind("kv", "kv", False),
    Kind(KV_SESSION, "kv", True),
)


@dataclass(frozen=True, slots=True)
class Talks:
    """So many conversations of so many turns, `k` facts found in each, answers of so many tokens."""

    conversations: int
    turns: int
    k: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SessionsRun:
    """What `bench sessions` found out."""

    talks: Talks
    turns: tuple[TalkTurn, ...]
    cells: tuple[SessionCell, ...]
    totals: tuple[SessionTotal, ...]
    ratios: tuple[Ratio, ...]
    complaints: tuple[str, ...]


@dataclass
class Talk:
    """One conversation: a Comparator that sends all that was said before. What is answered is said from then on."""

    user: str
    kind: Kind
    said: list[Mapping[str, object]] = field(default_factory=list)
    session: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def name(self) -> str:
        """The kind of memory."""
        return self.kind.name

    def prompted(self, question: str, k: int) -> Prompted:
        """The conversation and the question behind it."""
        self.said.append({"role": "user", "content": question})
        return Prompted(self.user, tuple(self.said), self.kind.mode, k, self.session if self.kind.in_session else None)

    def answered(self, text: str) -> None:
        """What the model said."""
        self.said.append({"role": "assistant", "content": text})


@dataclass(frozen=True)
class Talker:
    """Has conversations with one server. `users` by kind of memory: a user's prefix cache is shared with nobody."""

    client: InferScaleClient
    users: Mapping[str, str]
    talks: Talks
    losses: Losses = field(default_factory=Losses)

    def whole_talk(self, kind: Kind, questions: Sequence[str], conversation: int, name: str) -> list[TalkTurn]:
        """The turns of one conversation; none when one of them failed, which is counted by this name: what follows a
        turn without an answer is another conversation than the other kinds have."""
        return self.losses.tried(name, lambda: list(self.talk(kind, questions, conversation))) or []

    def talk(self, kind: Kind, questions: Sequence[str], conversation: int) -> Iterator[TalkTurn]:
        """Ask these questions, one after another."""
        talk = Talk(self.users[kind.name], kind)
        for turn, question in enumerate(questions, 1):
            reply = streamed_reply(self.client, talk, question, self.talks.k, self.talks.tokens)
            talk.answered(reply.text)
            yield TalkTurn(
                memory=kind.name,
                conversation=conversation,
                turn=turn,
                first_token_ms=reply.latency_ms if reply.first_token_ms is None else reply.first_token_ms,
                prefilled_tokens=reply.prefilled_tokens,
                injected_tokens=reply.injected_tokens,
                asked=reply.asked,
                served=reply.served,
                reason=reply.reason,
                session=reply.session,
                wanted=kind.in_session,
            )


def questions_of(talks: Talks) -> int:
    """How many different questions a run asks."""
    return WARM_UP_TURNS + talks.conversations * talks.turns


def run_sessions(client: InferScaleClient, conversation: Conversation, talks: Talks, tell: Report) -> SessionsRun:
    """Load the conversation's facts for a user of each kind, then talk. Raises the SDK's errors, ConfigError.

    Whole conversations count, with each kind of memory those of which no turn failed.
    """
    questions = different_questions([question.text for question in conversation.questions], questions_of(talks))
    users = {kind.name: new_user() for kind in KINDS}
    for kind in KINDS:
        if kind.name != FLOOR:
            take_in(client, users[kind.name], conversation.facts, tell)
    talker = Talker(client, users, talks)
    for kind in KINDS:
        tell(f"warming up: {kind.name}")
        talker.whole_talk(kind, questions[-WARM_UP_TURNS:], -1, WARM_UP)
    turns = list(_all_turns(talker, questions, tell))
    for kind in KINDS:
        talker.losses.check(kind.name)
    return summary(talks, turns, talker.losses)


def _all_turns(talker: Talker, questions: Sequence[str], tell: Report) -> Iterator[TalkTurn]:
    """Kinds take turns in going first, so that a drift of the machine hits all alike."""
    talks = talker.talks
    for at in range(talks.conversations):
        asked = questions[at * talks.turns : (at + 1) * talks.turns]
        for kind in (*KINDS[at % len(KINDS) :], *KINDS[: at % len(KINDS)]):
            tell(f"conversation {at + 1} of {talks.conversations}: {kind.name}")
            yield from talker.whole_talk(kind, asked, at, kind.name)


def summary(talks: Talks, turns: Sequence[TalkTurn], losses: Losses) -> SessionsRun:
    """Cells, totals, ratios and complaints of the turns."""
    names = [kind.name for kind in KINDS]
    totals = session_totals(turns, names, losses)
    return SessionsRun(
        talks,
        tuple(turns),
        tuple(session_cells(turns, names)),
        tuple(totals),
        tuple(session_ratios(totals)),
        (*session_complaints(turns), *losses.complaints),
    )
