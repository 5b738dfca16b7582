"""The sample memories hold what the demo promises."""

from __future__ import annotations

from inferscale_server.demo.conversations import Question, load_memories
from inferscale_server.demo.ttft import FACT_COUNTS

MEMORIES = load_memories()


def test_every_memory_is_large_enough_to_be_timed() -> None:
    assert all(memory.fact_count >= max(FACT_COUNTS) for memory in MEMORIES)
    assert sum(memory.fact_count for memory in MEMORIES) >= 60


def test_two_users_have_six_questions_each() -> None:
    assert [(memory.user, len(memory.questions)) for memory in MEMORIES] == [("mara", 6), ("tomas", 6)]


def test_every_answer_is_in_its_own_users_memory_and_not_in_the_question() -> None:
    for memory in MEMORIES:
        facts = " ".join(fact for session in memory.sessions for fact in session.facts)
        for question in memory.questions:
            assert question.accepts(facts), question.text
            assert not question.accepts(question.text), question.text


def test_no_answer_is_in_the_other_users_memory() -> None:
    """A leak between users would show as a right answer from the wrong memory."""
    for memory in MEMORIES:
        others = " ".join(fact for m in MEMORIES if m is not memory for s in m.sessions for fact in s.facts)
        leaks = [question.text for question in memory.questions if question.accepts(others)]
        assert leaks == []


def test_sessions_are_in_order_and_every_fact_is_a_sentence_of_its_own() -> None:
    for memory in MEMORIES:
        times = [session.timestamp for session in memory.sessions]
        assert times == sorted(set(times))
        facts = [fact for session in memory.sessions for fact in session.facts]
        assert len(facts) == len(set(facts))
        assert all(fact.endswith(".") and fact[0].isupper() for fact in facts)


def test_case_does_not_matter_to_an_answer() -> None:
    question = Question("mara", "?", ("maple inn",))
    assert question.accepts("At the Maple Inn.")
    assert not question.accepts("At an inn.")
