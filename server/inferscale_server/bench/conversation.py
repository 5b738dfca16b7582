"""What a benchmark is fed: one conversation's facts and questions, wherever they come from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from inferscale_server.demo.conversations import Memory


@dataclass(frozen=True, slots=True)
class DatedFact:
    """A sentence, who it is about where that is known, when it was said (with a time zone), and in which session."""

    text: str
    speaker: str | None = None
    said_at: datetime | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the conversation; `answer` and `category` where the source names them."""

    text: str
    answer: str | None = None
    category: int | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Facts, oldest session first, and questions about them."""

    name: str
    facts: tuple[DatedFact, ...]
    questions: tuple[Question, ...]

    def first(self, facts: int | None) -> Conversation:
        """The same with only its first facts; None keeps all."""
        return replace(self, facts=self.facts[:facts])


def fullest(conversations: Sequence[Conversation]) -> Conversation:
    """The conversation with the most facts, the first of equals."""
    return max(conversations, key=lambda conversation: len(conversation.facts))


def sample_conversation(memories: Sequence[Memory]) -> Conversation:
    """The project's own sample memories as one conversation, so that there are enough facts to recall 50."""
    facts = [
        DatedFact(text, None, datetime.fromisoformat(session.timestamp).astimezone(UTC))
        for memory in memories
        for session in memory.sessions
        for text in session.facts
    ]
    questions = [Question(question.text) for memory in memories for question in memory.questions]
    return Conversation("sample", tuple(facts), tuple(questions))
