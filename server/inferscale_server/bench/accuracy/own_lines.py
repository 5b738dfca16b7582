"""Reads a user's own questions: one JSON object a line, `{"question", "answer", "facts", "category"?}`.

`facts` are texts or objects `{"text", "speaker"?, "timestamp"?, "session_id"?}`, timestamps in ISO 8601. Lines with the
same facts ask one user.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.conversation import DatedFact

KEYS = frozenset({"question", "answer", "facts", "category"})
FACT_KEYS = frozenset({"text", "speaker", "timestamp", "session_id"})
NO_CATEGORY = "all"


def read_own_lines(name: str, text: str) -> list[Haystack]:
    """One haystack for each different list of facts. Raises ValueError that names the line."""
    by_facts: dict[tuple[DatedFact, ...], list[Case]] = {}
    for number, line in enumerate(text.split("\n"), 1):  # a JSON text may hold other line breaks
        if not line.strip():
            continue
        try:
            read = _object(json.loads(line), KEYS, "the line")
            facts = tuple(_fact(one) for one in _facts(read))
            case = Case(f"{name}/{number}", _text(read, "question"), _answer(read), _category(read))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        by_facts.setdefault(facts, []).append(case)
    return [Haystack(f"{name}-{at}", facts, tuple(cases)) for at, (facts, cases) in enumerate(by_facts.items(), 1)]


def _facts(read: Mapping[str, object]) -> list[object]:
    facts = read.get("facts")
    if not isinstance(facts, list) or not facts:
        raise ValueError("facts is no list of facts")
    return facts


def _fact(read: object) -> DatedFact:
    if isinstance(read, str):
        return DatedFact(_text({"text": read}, "text"))
    fact = _object(read, FACT_KEYS, "a fact")
    said_at = None if fact.get("timestamp") is None else _moment(_text(fact, "timestamp"))
    speaker, session = (None if fact.get(key) is None else _text(fact, key) for key in ("speaker", "session_id"))
    return DatedFact(_text(fact, "text"), speaker, said_at, session)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _answer(read: Mapping[str, object]) -> str:
    """A number is its digits, as in LoCoMo."""
    answer = read.get("answer")
    is_number = isinstance(answer, int | float) and not isinstance(answer, bool)
    return str(answer) if is_number else _text(read, "answer")


def _category(read: Mapping[str, object]) -> str:
    return NO_CATEGORY if read.get("category") is None else _text(read, "category")


def _object(value: object, keys: frozenset[str], what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")
    if unknown := sorted(value.keys() - keys):
        raise ValueError(f"{what} has an unknown key {unknown[0]!r}")
    return value


def _text(read: Mapping[str, object], key: str) -> str:
    value = read.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} is no text")
    return value
