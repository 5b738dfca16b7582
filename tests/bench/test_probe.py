"""No question is asked twice in a way that a cache could answer, and every mode gets its turn at every place."""

from __future__ import annotations

from collections import Counter

import pytest

from inferscale_server.bench.conversation import Conversation, DatedFact, Question, sample_conversation
from inferscale_server.bench.probe import (
    FACT_COUNTS,
    MODES,
    different_questions,
    plan_probes,
    possible_fact_counts,
    questions_needed,
)
from inferscale_server.bench.ttft import plan
from inferscale_server.demo.conversations import load_memories
from inferscale_server.errors import ConfigError

COUNTS = (5, 50)


def questions(count: int) -> list[str]:
    return [f"Question {at}?" for at in range(count)]


def test_every_cell_is_measured_once_a_round() -> None:
    probes = plan_probes(questions(12), COUNTS, rounds=3)
    assert Counter((probe.k, probe.mode) for probe in probes) == {(k, mode): 3 for k in COUNTS for mode in MODES}


def test_no_question_is_asked_twice_with_memory() -> None:
    probes = plan_probes(questions(12), COUNTS, rounds=3)
    with_memory = [probe.question for probe in probes if probe.mode != "off"]
    assert len(with_memory) == len(set(with_memory)) == questions_needed(COUNTS, 3)


def test_the_floor_is_the_question_that_was_asked_as_kv() -> None:
    probes = plan_probes(questions(12), COUNTS, rounds=3)
    assert sorted((p.k, p.question) for p in probes if p.mode == "off") == sorted(
        (p.k, p.question) for p in probes if p.mode == "kv"
    )


def test_modes_and_numbers_of_facts_take_turns() -> None:
    probes = plan_probes(questions(12), COUNTS, rounds=3)
    assert {probe.mode for probe in probes[::3]} == set(MODES)
    assert {probe.k for probe in probes[:: len(MODES) * len(COUNTS)]} == set(COUNTS)


def test_too_few_questions_are_a_programmers_error() -> None:
    with pytest.raises(AssertionError, match="12 questions needed, got 11"):
        plan_probes(questions(11), COUNTS, rounds=3)


def test_given_questions_come_first_and_none_comes_twice() -> None:
    found = different_questions(["a?", "b?", "a?"], 5)
    assert found[:2] == ["a?", "b?"] and len(set(found)) == 5
    assert all("a?" in text or "b?" in text for text in found)


def test_questions_that_run_out_are_an_error_that_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"'questions': 1000 .* there are only 16"):
        different_questions(["a?"], 1000)


def test_warming_up_takes_no_question_that_counts() -> None:
    asked = Conversation("c", (DatedFact("f"),) * 50, tuple(Question(text) for text in questions(40)))
    warm_up, counted = plan(asked, rounds=4)
    assert {probe.question for probe in warm_up}.isdisjoint(probe.question for probe in counted)
    assert {(probe.k, probe.mode) for probe in warm_up} == {(k, mode) for k in FACT_COUNTS for mode in MODES}


def test_the_sample_has_questions_enough_for_the_default() -> None:
    _, counted = plan(sample_conversation(load_memories()), rounds=20)
    assert len(counted) == 20 * len(FACT_COUNTS) * len(MODES)


def test_no_more_facts_are_asked_for_than_there_are() -> None:
    assert possible_fact_counts(49) == (5, 10, 20)
    with pytest.raises(ConfigError, match="'limit': at least 5 facts are needed, there are 4"):
        possible_fact_counts(4)
