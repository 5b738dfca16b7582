"""In which order what is asked. Pure.

A question is asked once with memory as text or as KV, never twice: the server keeps the vectors of questions, and vLLM
the blocks of prompts, so a second time would be served from a cache. Only the floor, which has neither, repeats the
question that was asked as KV. Modes and numbers of facts take turns, so that a drift of the machine hits all alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from inferscale_server.errors import ConfigError

T = TypeVar("T")

FACT_COUNTS = (5, 10, 20, 50)
MODES = ("off", "text", "kv")
RIVAL = "mem0"
"""A foreign memory's mode: it retrieves itself, and asks this server for an answer without memory."""
QUESTIONS_A_ROUND = 2
"""For each number of facts: one as text, another as KV and without memory; the rival takes one more."""

OPENINGS = ("", "Tell me: ", "Quick question: ", "I forgot. ")
CLOSINGS = ("", " Please.", " Thank you.", " Do you know?")


@dataclass(frozen=True, slots=True)
class Probe:
    """One request to be timed."""

    k: int
    mode: str
    question: str

    @property
    def kind(self) -> str:
        """What it is one of, in words."""
        return kind_of(self.k, self.mode)


def kind_of(k: int, mode: str) -> str:
    """Probes of one number of facts and one mode, in words."""
    return f"{mode} with k = {k}"


def plan_probes(questions: Sequence[str], fact_counts: Sequence[int], rounds: int, rival: bool = False) -> list[Probe]:
    """Every (number of facts, mode) once a round. Takes `questions_needed` of the questions, in order."""
    needed = questions_needed(fact_counts, rounds, rival)
    assert len(questions) >= needed, f"{needed} questions needed, got {len(questions)}"
    left = iter(questions)
    return [
        probe
        for turn in range(rounds)
        for at, k in enumerate(_rotated(fact_counts, turn))
        for probe in _rotated(_probes(k, left, rival), turn + at)
    ]


def possible_fact_counts(facts: int) -> tuple[int, ...]:
    """Those of FACT_COUNTS that so many facts can fill. Raises ConfigError when there are none."""
    possible = tuple(k for k in FACT_COUNTS if k <= facts)
    if not possible:
        raise ConfigError(f"option 'limit': at least {min(FACT_COUNTS)} facts are needed, there are {facts}")
    return possible


def check_reached(ks: Sequence[int], facts: int) -> None:
    """Raises ConfigError for a number of recalled facts that so many facts cannot fill."""
    if ks and max(ks) > facts:
        raise ConfigError(f"option 'facts': value {max(ks)} is never reached: only {facts} facts are loaded")


def questions_needed(fact_counts: Sequence[int], rounds: int, rival: bool = False) -> int:
    """How many different questions so many rounds take."""
    return (QUESTIONS_A_ROUND + int(rival)) * len(fact_counts) * rounds


def different_questions(questions: Sequence[str], count: int) -> list[str]:
    """`count` different questions: first the given ones, then the same in other words.

    Raises ConfigError when there are not enough.
    """
    given = dict.fromkeys(questions)
    worded = [opening + question + closing for closing in CLOSINGS for opening in OPENINGS for question in given]
    found = list(dict.fromkeys(worded))
    if len(found) < count:
        raise ConfigError(f"option 'questions': {count} different questions are needed, there are only {len(found)}")
    return found[:count]


def _probes(k: int, questions: Iterator[str], rival: bool) -> tuple[Probe, ...]:
    as_text, as_kv = next(questions), next(questions)
    ours = Probe(k, "off", as_kv), Probe(k, "text", as_text), Probe(k, "kv", as_kv)
    return (*ours, Probe(k, RIVAL, next(questions))) if rival else ours


def _rotated(values: Sequence[T], by: int) -> Sequence[T]:
    cut = by % len(values)
    return [*values[cut:], *values[:cut]]
