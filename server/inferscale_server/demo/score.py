"""Which answers hold the expected word, and whether memory made the difference that it should. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inferscale_server.demo.conversations import Question

MODES = ("off", "text", "kv")
"""In the order in which they are asked."""

TEXT_AT_LEAST = 8
KV_BEHIND_TEXT_AT_MOST = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: the mode asked for and the one served, and the facts that the model was given, best last."""

    question: Question
    asked: str
    served: str
    text: str
    facts: tuple[str, ...] = ()
    injected_tokens: int = 0

    @property
    def right(self) -> bool:
        """Does it hold what the memory holds?"""
        return self.question.accepts(self.text)


@dataclass(frozen=True, slots=True)
class Score:
    """Right answers of one mode."""

    mode: str
    right: int
    asked: int
    injected_tokens: int


def score(answers: Iterable[Answer], mode: str) -> Score:
    """Count one mode's answers."""
    of_mode = [answer for answer in answers if answer.asked == mode]
    right = sum(answer.right for answer in of_mode)
    return Score(mode, right, len(of_mode), sum(answer.injected_tokens for answer in of_mode))


def complaints(answers: Sequence[Answer]) -> list[str]:
    """Why this run does not show what it should; empty when it does."""
    off, text, kv = (score(answers, mode) for mode in MODES)
    found = [
        f"asked for {answer.asked} but served {answer.served}: {answer.question.text}"
        for answer in answers
        if answer.served != answer.asked
    ]
    if off.right:
        found.append(f"{off.right} questions were answered without memory, so they prove nothing")
    if text.right < TEXT_AT_LEAST:
        found.append(f"only {text.right} of {text.asked} answers are right with memory as text")
    if kv.right < text.right - KV_BEHIND_TEXT_AT_MOST:
        found.append(f"{kv.right} answers are right with memory as KV, but {text.right} as text")
    if kv.asked and not kv.injected_tokens:
        found.append("no KV was injected")
    return found
