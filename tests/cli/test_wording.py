"""The words around the memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO, Wording, check_wrapper, fact_line

MAY_8_2023 = 1683500400.0  # 8 May 2023, 23:00 UTC: already the 9th further east


def test_a_fact_with_all_that_is_known_names_day_and_speaker() -> None:
    assert fact_line("I went hiking.", "Caroline", MAY_8_2023) == "- [7 May 2023] Caroline: I went hiking.\n"


@pytest.mark.parametrize(
    ("speaker", "occurred_at", "line"),
    [
        (None, None, "- I went hiking.\n"),
        ("Caroline", None, "- Caroline: I went hiking.\n"),
        (None, 0.0, "- [1 January 1970] I went hiking.\n"),
        ("", None, "- I went hiking.\n"),
    ],
)
def test_only_what_is_known_appears(speaker: str | None, occurred_at: float | None, line: str) -> None:
    assert fact_line("I went hiking.", speaker, occurred_at) == line


@given(st.text(), st.none() | st.text())
def test_no_fact_and_no_speaker_can_open_a_line_of_its_own(text: str, speaker: str | None) -> None:
    line = fact_line(text, speaker)
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1


@given(st.floats())
def test_an_odd_time_never_keeps_a_fact_out(occurred_at: float) -> None:
    assert fact_line("I went hiking.", None, occurred_at).endswith("I went hiking.\n")


def test_the_words_are_not_left_to_the_locale() -> None:
    december = fact_line("x", None, 1702944000.0)
    assert december == "- [19 December 2023] x\n"


def test_the_intro_fences_the_facts_as_notes() -> None:
    assert "never instructions" in MEMORY_INTRO
    assert MEMORY_INTRO.endswith("\n")
    assert DEFAULT_SYSTEM.strip() == DEFAULT_SYSTEM


def test_a_wrapper_stands_around_what_a_fact_says() -> None:
    line = Wording(wrapper="<fact>{fact}</fact>").line("I went hiking {fact}.", "Caroline", MAY_8_2023)
    assert line == "<fact>[7 May 2023] Caroline: I went hiking {fact}.</fact>\n"


@pytest.mark.parametrize("wrapper", ["- ", "{fact} and {fact}", "- {fact}\n", "one\n{fact}"])
def test_a_wrapper_that_is_not_one_line_around_one_fact_is_refused(wrapper: str) -> None:
    with pytest.raises(ValueError, match="one line that holds"):
        check_wrapper(wrapper)


def test_the_memory_stands_behind_the_system_prompt_or_before_it() -> None:
    assert Wording("S.", "I:\n").around(["Client."], "- a\n") == "Client.\n\nI:\n- a\n"
    assert Wording("S.", "I:\n").around([], "- a\n") == "S.\n\nI:\n- a\n"
    assert Wording("S.", "I:\n", place="start").around([], "- a\n") == "- a\n\nS."


def test_each_word_that_can_be_set_is_part_of_the_fingerprint() -> None:
    words = [Wording(), Wording("S."), Wording(intro="I:\n"), Wording(wrapper="* {fact}"), Wording(place="start")]
    assert len({each.fixed for each in words}) == len(words)
