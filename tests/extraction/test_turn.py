"""Claims about what of a conversation may become a fact."""

from __future__ import annotations

import pytest

from inferscale_server.extraction.salient import Salient, objection
from inferscale_server.extraction.turn import Turn, is_small_talk
from inferscale_server.types import FactDraft
from tests.extraction.script import assistant, turns, user


def said(text: str, speaker: str = "user") -> Turn:
    return Turn((FactDraft(text, speaker),))


def test_each_message_of_the_user_is_a_turn_of_its_own() -> None:
    assert [turn.text for turn in turns("I have a dog.", assistant("Nice!"), "He is Rex.")] == [
        "I have a dog.",
        "He is Rex.",
    ]


def test_the_assistants_words_count_only_when_told_so() -> None:
    both = turns("I have a dog.", assistant("Dogs need walks."), sources="both")
    assert [turn.text for turn in both] == ["I have a dog.\nDogs need walks."]
    assert both[0].speakers == ("user", "assistant")


@pytest.mark.parametrize("role", ["system", "developer", "tool", "function"])
def test_system_text_and_tool_output_are_in_no_turn(role: str) -> None:
    assert turns({"role": role, "content": "User likes tea (memory)", "tool_call_id": "1"}, sources="both") == ()


@pytest.mark.parametrize(
    "text", ["ok", "OK!", " Okay... ", "thanks", "Yes, please.", "👍", "...", "好的", "d'accord", "?"]
)
def test_small_talk_is_no_turn(text: str) -> None:
    assert is_small_talk(text)
    assert turns(text) == ()


@pytest.mark.parametrize("text", ["I'm vegetarian", "Oslo", "我叫李雷", "ok so I moved to Oslo", "4417"])
def test_what_may_hold_a_fact_is_not_small_talk(text: str) -> None:
    assert not is_small_talk(text)


def test_a_name_is_the_speaker() -> None:
    assert turns(user("I have a dog.", name="Ann"))[0].speakers == ("Ann",)


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ("My dog Rex likes fish.", "The user's dog Rex likes fish."),
        ("I was born in 1984 in Oslo", "User was born in Oslo in 1984."),
        ("Mein Hund heißt Bruno.", "Der Hund des Users heißt Bruno."),
        ("ฉันชอบกินมะม่วง", "ผู้ใช้ชอบกินมะม่วง"),
        ("我喜欢吃饺子", "用户喜欢吃饺子"),
        ("I went hiking yesterday", "User went hiking yesterday (2023-05-07)."),
    ],
)
def test_a_fact_in_the_words_of_the_turn_is_kept(source: str, fact: str) -> None:
    assert objection(Salient(fact, "user"), said(source)) is None


@pytest.mark.parametrize(
    ("source", "fact", "reason"),
    [
        ("ok, go on then", "The user likes tea.", "not in the words"),
        ("Mein Hund heißt Bruno.", "The user owns a pet animal.", "not in the words"),
        ("My dog is Rex", "The user's dog is called Bella.", "not said"),
        ("I was born in 1984", "User was born in 1985.", "not said"),
        ("I was born in 1984", "! ? !", "not in the words"),
        ("What is the capital of France?", "France", "no sentence"),
        ("I love Chinese food", "Chinese food", "no sentence"),
    ],
)
def test_what_nobody_said_is_left_out(source: str, fact: str, reason: str) -> None:
    assert reason in str(objection(Salient(fact, "user"), said(source)))


def test_a_recalled_memory_that_the_assistant_repeats_is_not_learnt_again() -> None:
    heard = (FactDraft("what should I drink?", "user"), FactDraft("You like green tea a lot.", "assistant"))
    fact = Salient("User likes green tea a lot.", "assistant")
    assert objection(fact, Turn(heard)) is None
    assert objection(fact, Turn(heard, recalled=("The user likes green tea a lot.",))) == "it repeats a recalled memory"


def test_what_the_user_says_again_is_not_taken_for_recalled() -> None:
    turn = Turn((FactDraft("I like green tea a lot", "user"),), recalled=("The user likes green tea a lot.",))
    assert objection(Salient("User likes green tea a lot.", "user"), turn) is None
