"""The sample memories that the project ships: facts from dated conversations, and questions about them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation: when it was held (ISO 8601, UTC), and the facts that came of it."""

    id: str
    timestamp: str
    facts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one user's memory; an answer that holds any of `accept` (lower case) is right."""

    user: str
    text: str
    accept: tuple[str, ...]

    def accepts(self, answer: str) -> bool:
        """Is the answer right?"""
        return any(wanted in answer.lower() for wanted in self.accept)


@dataclass(frozen=True, slots=True)
class Memory:
    """One user's sessions, oldest first, and the questions about them."""

    user: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]

    @property
    def fact_count(self) -> int:
        """Facts over all sessions."""
        return sum(len(session.facts) for session in self.sessions)


def load_memories() -> tuple[Memory, ...]:
    """The memories of the packaged `conversations.json`."""
    read = json.loads(files(__package__).joinpath("conversations.json").read_text("utf-8"))
    return tuple(_memory(part) for part in read["memories"])


def _memory(part: dict[str, object]) -> Memory:
    user = str(part["user"])
    sessions = [Session(s["id"], s["timestamp"], tuple(s["facts"])) for s in part["sessions"]]  # type: ignore[attr-defined]
    questions = [Question(user, q["question"], tuple(q["accept"])) for q in part["questions"]]  # type: ignore[attr-defined]
    return Memory(user, tuple(sessions), tuple(questions))
