"""Conversations in LoCoMo's format are read as they are meant, and a broken file is one line that names the place."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.bench.conversation import Conversation, DatedFact, Question, fullest, sample_conversation
from inferscale_server.bench.locomo import parse_conversation, parse_date, read_conversations
from inferscale_server.demo.conversations import load_memories
from inferscale_server.errors import ConfigError
from tests.bench.invented import invented, write


def test_observations_become_facts_with_speaker_date_and_session_in_the_order_of_sessions() -> None:
    read = parse_conversation("7", invented())
    may, september, january = (
        datetime(2023, 5, 8, 13, 56, tzinfo=UTC),
        datetime(2023, 9, 13, 0, 9, tzinfo=UTC),
        datetime(2024, 1, 4, 12, 30, tzinfo=UTC),
    )
    assert read.facts == (
        DatedFact("Ilse built a canoe.", "Ilse", may, "session_1"),
        DatedFact("Ilse paddles at dawn.", "Ilse", may, "session_1"),
        DatedFact("Ravi bakes rye bread.", "Ravi", may, "session_1"),
        DatedFact("Ravi sold his bakery.", "Ravi", september, "session_2"),
        DatedFact("Ilse moved to Ghent.", "Ilse", january, "session_10"),
    )


def test_questions_keep_answer_and_category_where_there_are_any() -> None:
    questions = parse_conversation("7", invented()).questions
    assert questions[0] == Question("What did Ilse build?", "a canoe", 4)
    assert questions[1].answer == "2023"
    assert questions[3] == Question("What did Ravi build?", None, 5)


@pytest.mark.parametrize(
    ("text", "hour"), [("12:00 am on 1 May, 2023", 0), ("12:00 pm on 1 May, 2023", 12), ("1:00 pm on 1 May, 2023", 13)]
)
def test_noon_and_midnight_are_told_apart(text: str, hour: int) -> None:
    assert parse_date(text).hour == hour


@pytest.mark.parametrize("text", ["", "8 May 2023", "1:56 pm on 8 Mai, 2023", "1:56 pm on 31 February, 2023"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_date(text)


def test_a_folder_is_read_by_file_name(tmp_path: Path) -> None:
    write(tmp_path, "b")
    write(tmp_path, "a", {"session_2_observation": {"Ravi": []}})
    read = read_conversations(tmp_path)
    assert [(one.name, len(one.facts)) for one in read] == [("a", 4), ("b", 5)]
    assert fullest(read).name == "b"
    assert fullest(read).first(2).facts == read[1].facts[:2]
    assert fullest(read).first(None) == read[1]


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"session_2_date_time": "yesterday"}, "session_2_date_time: 'yesterday' is no date"),
        ({"session_2_date_time": None}, "session_2_date_time is NoneType, not str"),
        ({"session_2_observation": []}, "session_2_observation is list, not dict"),
        ({"session_2_observation": {"Ravi": ["text"]}}, "session_2_observation.Ravi[0] is str, not list"),
        ({"session_2_observation": {"Ravi": [[]]}}, "session_2_observation.Ravi[0] is NoneType, not str"),
        ({"qa": None}, "qa is NoneType, not list"),
        ({"qa": [{"answer": "x"}]}, "qa[0].question is NoneType, not str"),
    ],
)
def test_a_broken_file_is_one_line_with_file_and_place(tmp_path: Path, changed: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_conversations(write(tmp_path, changed=changed))
    message = str(refused.value)
    assert "7.json" in message and place in message and "\n" not in message


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"{}", b"[" * 100_000])
def test_a_file_that_holds_no_conversation_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "7.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"7\.json"):
        read_conversations(tmp_path)


def test_a_folder_without_conversations_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="'data'"):
            read_conversations(folder)


def test_the_sample_memories_make_one_conversation_with_enough_to_recall_fifty() -> None:
    sample: Conversation = sample_conversation(load_memories())
    assert len(sample.facts) >= 50
    assert all(fact.said_at is not None and fact.said_at.tzinfo is not None for fact in sample.facts)
    assert len(sample.questions) == sum(len(memory.questions) for memory in load_memories())
