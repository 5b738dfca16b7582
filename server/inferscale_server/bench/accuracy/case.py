"""What is asked: questions with a known answer, and the facts that they are about. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inferscale_server.bench.conversation import DatedFact


@dataclass(frozen=True, slots=True)
class Case:
    """One question with its gold answer. `key` is the same in every run over the same facts and questions."""

    key: str
    question: str
    answer: str
    category: str


@dataclass(frozen=True, slots=True)
class Haystack:
    """One user's facts, oldest first, and the questions about them; the project's promises speak of LoCoMo's alone."""

    name: str
    facts: tuple[DatedFact, ...]
    cases: tuple[Case, ...]
    is_locomo: bool = False


def digest_of(haystacks: Sequence[Haystack]) -> str:
    """16 hex characters that name all facts and questions."""
    facts = [[h.name, [[f.text, f.speaker, str(f.said_at), f.session] for f in h.facts]] for h in haystacks]
    cases = [[c.key, c.question, c.answer, c.category] for h in haystacks for c in h.cases]
    return hashlib.sha256(json.dumps([facts, cases]).encode()).hexdigest()[:16]


def spread(haystacks: Sequence[Haystack], limit: int | None) -> list[Haystack]:
    """At most `limit` of all cases, evenly spaced, so that users and categories stay mixed; None keeps all."""
    cases = [case for haystack in haystacks for case in haystack.cases]
    if limit is None or limit >= len(cases):
        return list(haystacks)
    kept = {cases[at * len(cases) // limit].key for at in range(limit)}
    thinned = [replace(h, cases=tuple(c for c in h.cases if c.key in kept)) for h in haystacks]
    return [haystack for haystack in thinned if haystack.cases]
