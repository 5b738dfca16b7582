"""Reads conversations in LoCoMo's format (Maharana et al., ACL 2024): one JSON a conversation, from the user's folder.

Keys used: `session_N_date_time` ("1:56 pm on 8 May, 2023"), `session_N_observation` ({speaker: [[sentence, turns]]})
and `qa` ([{question, answer?, category?}]). Observations are the facts, each dated with its session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from inferscale_server.bench.conversation import Conversation, DatedFact, Question
from inferscale_server.errors import ConfigError

T = TypeVar("T")
Json = dict[str, object]

OBSERVATION = re.compile(r"session_(\d+)_observation")
DATE = re.compile(r"(\d{1,2}):(\d{2}) (am|pm) on (\d{1,2}) ([a-z]+),? (\d{4})", re.IGNORECASE)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def read_conversations(folder: Path) -> list[Conversation]:
    """All conversations of a folder, by file name. Raises ConfigError that names the file and the place in it."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(f"option 'data': {str(folder)!r} is no folder with *.json files")
    return [read_conversation(file) for file in files]


def read_conversation(file: Path) -> Conversation:
    """The conversation of one file, named for it. Raises ConfigError."""
    try:
        return parse_conversation(file.stem, json.loads(file.read_text("utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad JSON, or ours
        raise ConfigError(f"option 'data': {file}: {error}") from error


def parse_conversation(name: str, read: object) -> Conversation:
    """What `read` (parsed JSON) holds. Raises ValueError that names the place."""
    whole = _expect(read, dict, "the file")
    numbers = sorted(int(found[1]) for key in whole if (found := OBSERVATION.fullmatch(key)))
    facts = tuple(fact for number in numbers for fact in _facts(whole, number))
    if not facts:
        raise ValueError("no session_N_observation holds a fact")
    asked = _expect(whole.get("qa"), list, "qa")
    return Conversation(name, facts, tuple(_question(one, f"qa[{at}]") for at, one in enumerate(asked)))


def parse_date(text: str) -> datetime:
    """`1:56 pm on 8 May, 2023`, taken as UTC. Raises ValueError."""
    found = DATE.fullmatch(text.strip())
    month = found[5][:3].lower() if found else ""
    if found is None or month not in MONTHS:
        raise ValueError(f"{text!r} is no date such as '1:56 pm on 8 May, 2023'")
    # Not strptime, which follows the locale.
    hour = int(found[1]) % 12 + (12 if found[3].lower() == "pm" else 0)
    return datetime(int(found[6]), MONTHS.index(month) + 1, int(found[4]), hour, int(found[2]), tzinfo=UTC)


def _facts(whole: Json, number: int) -> Iterator[DatedFact]:
    key = f"session_{number}_observation"
    by_speaker = _expect(whole[key], dict, key)
    said_at = _date(whole, f"session_{number}_date_time")
    for speaker, observations in by_speaker.items():
        for at, pair in enumerate(_expect(observations, list, f"{key}.{speaker}")):
            where = f"{key}.{speaker}[{at}]"
            text = _expect(next(iter(_expect(pair, list, where)), None), str, where)
            if text.strip():
                yield DatedFact(text, speaker, said_at, f"session_{number}")


def _date(whole: Json, key: str) -> datetime:
    try:
        return parse_date(_expect(whole.get(key), str, key))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _question(read: object, where: str) -> Question:
    asked = _expect(read, dict, where)
    text = _expect(asked.get("question"), str, f"{where}.question")
    answer, category = asked.get("answer"), asked.get("category")
    return Question(text, None if answer is None else str(answer), category if isinstance(category, int) else None)


def _expect(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value
