"""Claims about what of a conversation may become a fact."""

from __future__ import annotations

import pytest

from inferscale_server.extraction.salient import Salient, dates_of, objection
from inferscale_server.extraction.turn import Turn, is_question, is_small_talk
from inferscale_server.types import FactDraft
from tests.extraction.script import SAID_AT, assistant, turns, user


def said(text: str, speaker: str = "user") -> Turn:
    return Turn((FactDraft(text, speaker),))


def objected(fact: Salient, turn: Turn, now: float = SAID_AT) -> str | None:
    """The objection to a fact that was made of the turn then."""
    return objection(fact, turn, dates_of(turn, now))


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
    assert objected(Salient(fact, "user"), said(source)) is None


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
    assert reason in str(objected(Salient(fact, "user"), said(source)))


def test_a_recalled_memory_that_the_assistant_repeats_is_not_learnt_again() -> None:
    heard = (FactDraft("what should I drink?", "user"), FactDraft("You like green tea a lot.", "assistant"))
    fact = Salient("User likes green tea a lot.", "assistant")
    assert objected(fact, Turn(heard)) is None
    again = Turn(heard, recalled=("The user likes green tea a lot.",))
    assert objected(fact, again) == "it repeats a recalled memory"


def test_what_the_user_says_again_is_not_taken_for_recalled() -> None:
    turn = Turn((FactDraft("I like green tea a lot", "user"),), recalled=("The user likes green tea a lot.",))
    assert objected(Salient("User likes green tea a lot.", "user"), turn) is None


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ("I moved to Rome yesterday", "User moved to Rome on 2023-05-07."),
        ("I moved to Rome yesterday", "User moved to Rome on May 7, 2023."),
        ("I moved to Rome yesterday", "User moved to Rome on the 7th of May 2023."),
        ("I moved to Rome yesterday", "On Sunday, 7 May, User moved to Rome."),
        ("I moved to Rome yesterday", "User moved to Rome in May 2023."),
        ("I moved to Rome", "User has moved to Rome by Monday, 8 May 2023."),
        ("J'ai déménagé à Rome hier", "L'utilisateur a déménagé à Rome le 7 mai 2023."),
        ("Ich bin gestern nach Rom gezogen", "Der User ist am 7. Mai 2023 nach Rom gezogen."),
        ("Ayer me mudé a Roma", "El usuario se mudó a Roma el 7 de mayo de 2023."),
        ("我昨天搬到了罗马", "用户2023年5月7日搬到了罗马。"),
        ("I moved to Rome last month", "User moved to Rome in April 2023."),
        ("I moved to Rome last year", "User moved to Rome in 2022."),
        ("I moved to Rome on May 3", "User moved to Rome on 2023-05-03."),
        ("I moved to Rome on 3/5/2021", "User moved to Rome on 3 May 2021."),
    ],
)
def test_a_date_that_the_turn_means_may_be_written_in_any_way(source: str, fact: str) -> None:
    assert objected(Salient(fact, "user"), said(source)) is None


@pytest.mark.parametrize(
    "fact",
    [
        "User moved to Rome on 2023-05-09.",
        "User moved to Rome on May 7, 2024.",
        "User moved to Rome on 7 June 2023.",
        "User moved to Rome on Tuesday.",
        "User moved to Rome yesterday (2023-01-01).",
        "User moved to Rome with 7 dogs.",
        "User moved to Rome with 5 dogs yesterday (2023-05-07).",
    ],
)
def test_a_date_that_nobody_named_and_a_number_that_is_no_date_are_left_out(fact: str) -> None:
    turn = said("I moved to Rome yesterday")
    assert objected(Salient(fact, "user"), turn) == "it names what was not said"


def test_the_messages_own_time_counts_and_not_the_time_of_reading() -> None:
    turn = Turn((FactDraft("I moved to Rome yesterday", "user", occurred_at=SAID_AT),))
    assert objected(Salient("User moved to Rome on 2023-05-07.", "user"), turn, SAID_AT + 1e7) is None


@pytest.mark.parametrize(
    "text",
    [
        "What is the capital of France?",
        "Where do I live? And what do I like?",
        "¿Dónde vivo?",
        "我住在哪里？",
        "أين أسكن؟",
        "Really?!",
        "Who am I?\n\nWhere am I? ",
    ],
)
def test_a_message_that_only_asks_is_a_question(text: str) -> None:
    assert is_question(text)


@pytest.mark.parametrize(
    "text",
    [
        "I moved to Rome. Is it nice there?",
        "Is it nice there? I moved to Rome",
        "My dog is Rex, isn't he?",
        "Did you know that I moved to Rome?",
        "Can you remember my birthday is in May?",
        "I moved to Rome",
        "?",
        "",
    ],
)
def test_what_may_tell_something_is_no_question(text: str) -> None:
    assert not is_question(text)
