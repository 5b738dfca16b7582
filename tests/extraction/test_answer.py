"""Claims about answers of models, however they are wrapped or broken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.extraction.answer import MAX_FACTS_PER_TURN, BadAnswer, read_facts, salvage_facts
from tests.edge.asgi import FEW
from tests.extraction.script import facts

SPEAKERS = ("user", "Ann")
GOOD = facts("The user has a dog.")


def read(answer: str) -> list[str]:
    return [fact.text for fact in read_facts(answer, SPEAKERS).facts]


@pytest.mark.parametrize(
    "answer",
    [
        GOOD,
        f"```json\n{GOOD}\n```",
        f"Sure! {GOOD}",
        f"Sure, here is what I found:\n```\n{GOOD}\n```\nAnything else?",
        f"\ufeff  {GOOD}",
        '{"memory": [{"text": "The user has a dog.", "attributed_to": "user"}]}',
        '{"facts": ["The user has a dog."]}',
        '["The user has a dog."]',
        '[{"fact": "The user has a dog."}]',
        '{"facts": [{"who": "nobody", "text": " The user\\nhas a dog. "}]}',
    ],
)
def test_a_fact_is_read_whatever_is_around_it(answer: str) -> None:
    assert read(answer) == ["The user has a dog."]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("I could not find anything.", "no JSON"),
        ('{"facts": [{"who": "user", "te', "no JSON"),
        ('{"people": ["Ann"]}', "no list"),
        ('{"facts": "The user has a dog."}', "no list"),
        ('{"facts": [{"who": "user"}]}', "no text"),
        ('{"facts": [17]}', "no text"),
        ('{"facts": [{"text": ""}]}', "cannot be kept"),
        ("[" * 10_000, "no JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(answer: str, reason: str) -> None:
    with pytest.raises(BadAnswer, match=reason):
        read_facts(answer, SPEAKERS)


@pytest.mark.parametrize("answer", ['{"facts": []}', "[]", '```json\n{"facts": []}\n```'])
def test_nothing_to_remember_is_an_answer(answer: str) -> None:
    assert read(answer) == []


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (r"It costs 5\€ a day", "It costs 5\\€ a day"),
        (r"path C:\new\_dir", "path C: ew\\_dir"),  # \n is an escape, \_ is not
        (r"a half pair \uD83D here", "a half pair here"),
        (r"broken \u12 escape", "broken \\u12 escape"),
        (r"whole \uD83D\uDC36 dog", "whole 🐶 dog"),
        (r"quoted \"Rex\" dog", 'quoted "Rex" dog'),
    ],
)
def test_bad_escapes_and_lone_surrogates_lose_no_fact(written: str, text: str) -> None:
    assert read(f'{{"facts": [{{"who": "user", "text": "{written}"}}]}}') == [text]


def test_of_an_answer_that_was_cut_short_the_whole_facts_are_kept() -> None:
    cut = facts("one dog", "two cats", "three birds")[:-20]
    with pytest.raises(BadAnswer):
        read_facts(cut, SPEAKERS)
    assert [fact.text for fact in salvage_facts(cut, SPEAKERS).facts] == ["one dog", "two cats"]


@pytest.mark.parametrize("cut", ["", '{"facts": [{"who": "user", "text": "The us', "no list at all"])
def test_an_answer_that_was_cut_before_its_first_fact_holds_none(cut: str) -> None:
    with pytest.raises(BadAnswer, match="cut short"):
        salvage_facts(cut, SPEAKERS)


def test_more_facts_than_a_turn_may_have_are_left_out() -> None:
    assert len(read(facts(*(f"fact {number}" for number in range(9))))) == MAX_FACTS_PER_TURN == 5


def test_the_speaker_is_one_of_the_turns_or_its_first() -> None:
    found = read_facts(json.dumps([{"who": "Ann", "text": "a"}, {"who": "Bob", "text": "b"}, "c"]), SPEAKERS)
    assert [fact.speaker for fact in found.facts] == ["Ann", "user", "user"]


def test_one_bad_fact_does_not_take_the_others_with_it() -> None:
    found = read_facts('{"facts": ["a good one", 17]}', SPEAKERS)
    assert [fact.text for fact in found.facts] == ["a good one"] and found.lost == ("a fact of the answer has no text",)


@FEW
@given(st.text() | st.text(alphabet='{}[]":,\\u facts text0'))
def test_any_text_is_facts_or_a_bad_answer(answer: str) -> None:
    for reading in (read_facts, salvage_facts):
        try:
            found = reading(answer, SPEAKERS)
        except BadAnswer as error:
            assert str(error)
            continue
        assert all(fact.text.encode() for fact in found.facts)
