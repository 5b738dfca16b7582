"""Questions of every format become the same thing; a broken file is one line that names the place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.bench.accuracy.case import Case, digest_of
from inferscale_server.bench.accuracy.haystacks import read_haystacks, sample_haystack
from inferscale_server.bench.accuracy.longmemeval import parse_date
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.demo.conversations import load_memories
from inferscale_server.errors import ConfigError
from inferscale_server.limits import MAX_FACT_CHARS
from tests.bench.invented import write

LINES = [
    {"question": "Who bakes?", "answer": "Ravi", "facts": ["Ravi bakes.", "Ilse rows."], "category": "people"},
    {"question": "Who rows?", "answer": "Ilse", "facts": ["Ravi bakes.", "Ilse rows."]},
    {
        "question": "Where?",
        "answer": "Ghent",
        "facts": [{"text": "She moved.", "speaker": "Ilse", "timestamp": "2024-01-04", "session_id": "s"}],
    },
]


def write_lines(folder: Path, lines: list[Any]) -> Path:
    """The lines as JSONL; a string is written as it is."""
    file = folder / "mine.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n", "utf-8")
    return file


def long_memory(**changed: Any) -> dict[str, Any]:
    """One question in LongMemEval's format, its later session first."""
    return {
        "question_id": "q1",
        "question_type": "temporal-reasoning",
        "question": "When did I buy the canoe?",
        "question_date": "2023/05/30 (Tue) 23:40",
        "answer": 7,
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/19 (Fri) 10:00"],
        "haystack_session_ids": ["b", "a"],
        "haystack_sessions": [
            [{"role": "user", "content": "I bought\na canoe."}, {"role": "assistant", "content": "Nice."}],
            [{"role": "user", "content": "x" * (MAX_FACT_CHARS + 1), "has_answer": True}],
        ],
    } | changed


def test_locomo_questions_with_an_answer_keep_their_number_and_get_a_category_in_words(tmp_path: Path) -> None:
    [haystack] = read_haystacks(write(tmp_path))
    assert haystack.cases == (
        Case("7/0", "What did Ilse build?", "a canoe", "single-hop"),
        Case("7/1", "When did Ravi sell his bakery?", "2023", "temporal"),
        Case("7/2", "Where does Ilse live?", "Ghent", "single-hop"),
    )
    assert len(haystack.facts) == 5 and haystack.facts[-1].session == "session_10"


def test_locomo_questions_and_observations_that_are_blank_are_left_out(tmp_path: Path) -> None:
    blank = [
        {"question": "Who?", "answer": " ", "category": 4},
        {"question": " ", "answer": "Ravi", "category": 4},
        {"question": "Who?", "answer": "Ravi", "category": 4},
    ]
    said = {"Ravi": [["", "D1:1"], ["Ravi bakes.", "D1:2"]]}
    [haystack] = read_haystacks(write(tmp_path, changed={"qa": blank, "session_1_observation": said}))
    assert [case.key for case in haystack.cases] == ["7/2"] and all(fact.text for fact in haystack.facts)


def test_a_single_file_is_read_without_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "7")
    write(tmp_path, "8")
    assert [haystack.name for haystack in read_haystacks(tmp_path / "8.json")] == ["8"]
    assert [haystack.name for haystack in read_haystacks(tmp_path)] == ["7", "8"]


def test_lines_with_the_same_facts_ask_one_user(tmp_path: Path) -> None:
    first, second = read_haystacks(write_lines(tmp_path, LINES))
    assert [(case.key, case.category) for case in first.cases] == [("mine/1", "people"), ("mine/2", "all")]
    assert first.facts == (DatedFact("Ravi bakes."), DatedFact("Ilse rows."))
    assert second.facts == (DatedFact("She moved.", "Ilse", datetime(2024, 1, 4, tzinfo=UTC), "s"),)


def test_a_line_ends_at_its_line_feed_whatever_its_texts_hold(tmp_path: Path) -> None:
    lines = [{**LINES[0], "facts": [f"Ravi{mark}bakes."]} for mark in ("\u2028", "\x85", "\N{CROISSANT}")]
    (tmp_path / "mine.jsonl").write_text(
        "".join(json.dumps(line, ensure_ascii=False) + "\r\n" for line in lines), "utf-8"
    )
    read = read_haystacks(tmp_path)
    assert [haystack.facts[0].text for haystack in read] == [line["facts"][0] for line in lines]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(json.dumps(LINES[0]), "utf-8-sig")
    assert len(read_haystacks(tmp_path)) == 1


def test_an_answer_may_be_a_number(tmp_path: Path) -> None:
    [haystack] = read_haystacks(write_lines(tmp_path, [{**LINES[0], "answer": 2023}]))
    assert haystack.cases[0].answer == "2023"


def test_half_a_character_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.jsonl.*surrogates not allowed"):
        read_haystacks(write_lines(tmp_path, [{**LINES[0], "question": "\ud800?"}]))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 1: "),
        ([], "line 1: the line is no JSON object"),
        ({**LINES[0], "fact": 1}, "line 1: the line has an unknown key 'fact'"),
        ({**LINES[0], "answer": " "}, "line 1: answer is no text"),
        ({**LINES[0], "answer": True}, "line 1: answer is no text"),
        ({**LINES[0], "facts": []}, "line 1: facts is no list of facts"),
        ({**LINES[0], "facts": [{"text": "a", "timestamp": "soon"}]}, "line 1: Invalid isoformat"),
        ({**LINES[0], "facts": [7]}, "line 1: a fact is no JSON object"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.jsonl") as raised:
        read_haystacks(write_lines(tmp_path, [line]))
    assert complaint in str(raised.value)


def test_in_longmemeval_each_turn_is_a_fact_of_the_questions_own_haystack(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps([long_memory(), long_memory(question_id="q2_abs")]), "utf-8")
    [haystack] = read_haystacks(tmp_path)
    assert [(case.key, case.answer, case.category) for case in haystack.cases] == [("s/q1", "7", "temporal-reasoning")]
    assert [(len(fact.text), fact.session) for fact in haystack.facts] == [(MAX_FACT_CHARS, "a"), (17, "b"), (5, "b")]
    assert [fact.speaker for fact in haystack.facts] == [None, None, "assistant"]
    assert haystack.facts[1].said_at == datetime(2023, 5, 20, 2, 21, tzinfo=UTC)


@pytest.mark.parametrize(
    ("asked_on", "question"),
    [
        ("2023/05/30 (Tue) 23:40", "Today is 30 May 2023. When did I buy the canoe?"),
        (None, "When did I buy the canoe?"),
    ],
)
def test_a_longmemeval_question_says_on_which_day_it_is_asked(
    tmp_path: Path, asked_on: str | None, question: str
) -> None:
    (tmp_path / "s.json").write_text(json.dumps([long_memory(question_date=asked_on)]), "utf-8")
    [haystack] = read_haystacks(tmp_path)
    assert haystack.cases[0].question == question


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"haystack_dates": ["2023/05/20"]}, r"s\[0\]: 2 haystack_sessions, 1 haystack_dates, 2 session ids"),
        ({"haystack_dates": ["yesterday", "2023/05/20"]}, r"s\[0\]: 'yesterday' is no date"),
        ({"haystack_dates": ["2023/13/20", "2023/05/20"]}, r"s\[0\]: month must be in 1..12"),
        ({"question_date": "today"}, r"s\[0\]: 'today' is no date"),
        ({"question": " "}, r"s\[0\]: question is no text"),
        ({"haystack_sessions": [[], [{"role": "user", "content": None}]]}, r"s\[0\]: haystack_sessions holds no text"),
        ({"haystack_sessions": 3}, r"s\[0\]: TypeError"),
        ({"haystack_session_ids": None}, r"s\[0\]: TypeError"),
    ],
)
def test_a_broken_longmemeval_question_is_named(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    (tmp_path / "s.json").write_text(json.dumps([long_memory(**changed)]), "utf-8")
    with pytest.raises(ConfigError, match=complaint):
        read_haystacks(tmp_path)


@pytest.mark.parametrize("key", ["question", "answer", "question_id", "haystack_sessions", "haystack_dates"])
def test_what_a_longmemeval_question_lacks_is_named(tmp_path: Path, key: str) -> None:
    broken = {name: value for name, value in long_memory(question_id="q2").items() if name != key}
    (tmp_path / "s.json").write_text(json.dumps([long_memory(), broken]), "utf-8")
    with pytest.raises(ConfigError, match=rf"s\[1\] has no '{key}'"):
        read_haystacks(tmp_path)


@pytest.mark.parametrize("answer", [None, "", " "])
def test_a_longmemeval_question_without_an_answer_is_left_out(tmp_path: Path, answer: str | None) -> None:
    (tmp_path / "s.json").write_text(json.dumps([long_memory(question_id="q2", answer=answer), long_memory()]), "utf-8")
    assert [case.key for haystack in read_haystacks(tmp_path) for case in haystack.cases] == ["s/q1"]


def test_two_questions_of_one_name_are_refused_since_they_would_share_their_rows(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps([long_memory(), long_memory(answer="8")]), "utf-8")
    with pytest.raises(ConfigError, match=r"2 questions in .* are named 's/q1'"):
        read_haystacks(tmp_path)


def test_a_longmemeval_date_may_lack_its_time() -> None:
    assert parse_date("2023/05/20") == datetime(2023, 5, 20, tzinfo=UTC)


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        read_haystacks(tmp_path)
    write(tmp_path, changed={"qa": [{"question": "What did Ravi build?", "category": 5}]})
    with pytest.raises(ConfigError, match="has an answer"):
        read_haystacks(tmp_path)


def test_the_sample_memories_are_questions_too() -> None:
    sample = sample_haystack(load_memories())
    assert len(sample.cases) >= 10 and len(sample.facts) >= 50
    assert all(case.answer[:1].isupper() or case.answer[:1].isdigit() for case in sample.cases)


def test_another_fact_or_answer_is_another_data_set(tmp_path: Path) -> None:
    [first, *_] = read_haystacks(write_lines(tmp_path, LINES))
    [changed, *_] = read_haystacks(write_lines(tmp_path, [{**LINES[0], "answer": "Ilse"}, *LINES[1:]]))
    assert digest_of([first]) == digest_of([first]) != digest_of([changed])
