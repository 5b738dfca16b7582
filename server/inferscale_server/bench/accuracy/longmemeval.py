"""Reads questions in LongMemEval's format (Wu et al., ICLR 2025): one JSON list, a haystack of sessions a question.

Keys used: `question_id`, `question_type`, `question`, `question_date`, `answer`, `haystack_dates`
("2023/05/20 (Sat) 02:21"), `haystack_session_ids`, `haystack_sessions` ([[{role, content}]]). Each turn is a fact: some
questions are about what the assistant said, whose turns name it. Many ask for a time from now, so each begins with its
date. Questions whose id ends in `_abs` ask about what was never said and have no answer to be scored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.limits import MAX_FACT_CHARS
from inferscale_server.wording import day

DATE = re.compile(r"(\d{4})/(\d{1,2})/(\d{1,2})(?: \([A-Za-z]+\))?(?: (\d{1,2}):(\d{2}))?")
ABSTENTION = "_abs"
SPEAKERS = {"user": None, "assistant": "assistant"}
"""Who is named before a turn. The user speaks of itself as I, and needs no name."""


def is_longmemeval(read: object) -> bool:
    """Does parsed JSON look like LongMemEval? Every other format is an object."""
    return isinstance(read, list)


def parse_longmemeval(name: str, read: Sequence[object]) -> list[Haystack]:
    """One haystack a question that has an answer. Raises ValueError that names the place."""
    return [haystack for at, one in enumerate(read) if (haystack := _read(f"{name}[{at}]", name, one)) is not None]


def parse_date(text: str) -> datetime:
    """`2023/05/20 (Sat) 02:21`, taken as UTC. Raises ValueError."""
    found = DATE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no date such as '2023/05/20 (Sat) 02:21'")
    year, month, day, hour, minute = (int(part or 0) for part in found.groups())
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


def _read(where: str, name: str, read: object) -> Haystack | None:
    if not isinstance(read, dict):
        raise ValueError(f"{where} is no JSON object")
    try:
        return None if _unanswerable(read) else _haystack(name, read)
    except KeyError as error:
        raise ValueError(f"{where} has no {error}") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{where}: {type(error).__name__}: {error}") from error


def _unanswerable(read: Mapping[str, object]) -> bool:
    answer = read["answer"]
    return str(read["question_id"]).endswith(ABSTENTION) or answer is None or not str(answer).strip()


def _haystack(name: str, read: Mapping[str, object]) -> Haystack:
    case = Case(f"{name}/{read['question_id']}", _question(read), str(read["answer"]), str(read["question_type"]))
    facts = sorted(_facts(read), key=lambda fact: (fact.said_at is not None, fact.said_at))
    if not facts:
        raise ValueError("haystack_sessions holds no text")
    return Haystack(case.key, tuple(facts), (case,))


def _question(read: Mapping[str, object]) -> str:
    """Behind the day on which it is asked, where that is known."""
    if not str(read["question"]).strip():
        raise ValueError("question is no text")
    asked_on = read.get("question_date")
    today = None if asked_on is None else day(parse_date(str(asked_on)).timestamp())
    return str(read["question"]) if today is None else f"Today is {today}. {read['question']}"


def _facts(read: Mapping[str, object]) -> Iterator[DatedFact]:
    sessions, dates, ids = (_listed(read, f"haystack_{what}") for what in ("sessions", "dates", "session_ids"))
    if not len(sessions) == len(dates) == len(ids):
        raise ValueError(f"{len(sessions)} haystack_sessions, {len(dates)} haystack_dates, {len(ids)} session ids")
    for turns, date, session in zip(sessions, dates, ids, strict=True):
        for turn in turns:
            text = " ".join(str(turn["content"] or "").split())[:MAX_FACT_CHARS]
            if turn["role"] in SPEAKERS and text:
                yield DatedFact(text, SPEAKERS[str(turn["role"])], parse_date(str(date)), str(session))


def _listed(read: Mapping[str, object], key: str) -> list[list[dict[str, object]]]:
    value = read[key]
    if not isinstance(value, list):
        raise TypeError(f"{key} is no list")
    return value
