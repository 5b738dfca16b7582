"""The sessions of a server: bounded, apart, and gone when they should be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inferscale_server.filters import parse_filter
from inferscale_server.plan import Frame, MemoryLine, plan_memory
from inferscale_server.session import MAX_TURNS, NOTE_FACTS, Block, Session, Terms, addition, unfit
from inferscale_server.session_notes import Note, Noted
from inferscale_server.sessions import Sessions

from .builders import ALICE, BOB, fact

TERMS = Terms("header", None, "auto", None, 0)


@dataclass
class Clock:
    """Seconds that pass when told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def block_of(*names: str, context: tuple[str, ...] = (), terms: Terms = TERMS) -> Block:
    """A text block of these facts and contexts."""
    lines = [MemoryLine(name, f"fact {name}", None, (1,), None) for name in names]
    lines += [MemoryLine(None, text, None, (2,), None) for text in context]
    return Block(plan_memory(Frame((1,), (2,)), lines, None, "text", None), terms)


def noted(name: str | None, text: str = "") -> Noted:
    return Noted(name, text or f"fact {name}", "- line\n", 0.5)


def begun(sessions: Sessions, session_id: str = "s") -> Session:
    """Alice's session with a block and a note."""
    session = sessions.of(ALICE, session_id)
    session.begin(block_of("1"), "turn")
    session.note("turn", Note((noted("2"),)))
    return session


def test_a_session_is_found_again() -> None:
    sessions = Sessions(10, 60)
    assert sessions.of(ALICE, "s") is sessions.of(ALICE, "s") and len(sessions) == 1


def test_two_owners_sessions_of_one_name_are_two() -> None:
    sessions = Sessions(10, 60)
    assert sessions.of(ALICE, "s") is not sessions.of(BOB, "s")


def test_the_session_used_longest_ago_makes_room() -> None:
    sessions = Sessions(2, 60)
    a, b = sessions.of(ALICE, "a"), sessions.of(ALICE, "b")
    sessions.of(ALICE, "a")
    sessions.of(BOB, "c")
    assert len(sessions) == 2 and sessions.of(ALICE, "a") is a
    assert sessions.of(ALICE, "b") is not b


def test_one_owners_many_sessions_push_out_their_own_only() -> None:
    sessions = Sessions(100, 60, per_owner=2)
    bobs = sessions.of(BOB, "s")
    first = sessions.of(ALICE, "0")
    for number in range(1, 10):
        sessions.of(ALICE, str(number))
    assert len(sessions) == 3 and sessions.of(BOB, "s") is bobs and sessions.of(ALICE, "0") is not first


def test_an_idle_session_is_forgotten() -> None:
    clock = Clock()
    sessions = Sessions(10, 60, clock=clock)
    old = begun(sessions)
    clock.now = 60
    assert sessions.of(ALICE, "s") is old
    clock.now = 121
    assert sessions.forget_idle() == 0 and old.block is None
    assert sessions.of(ALICE, "s") is not old


def test_no_session_keeps_a_text_from_before_a_change() -> None:
    sessions = Sessions(10, 60)
    session, other = begun(sessions), sessions.of(BOB, "s")
    other.begin(block_of("9"), "turn")
    sessions.forget_facts(ALICE, ["1"])
    assert session.block is None and not session.notes and session.lost == "facts_changed"
    assert other.block is not None


def test_a_forgotten_owner_has_no_sessions_and_leaves_nothing_behind() -> None:
    sessions = Sessions(10, 60)
    session = begun(sessions)
    sessions.forget_owner(ALICE)
    assert len(sessions) == 0 and session.block is None and not session.notes and not sessions._of_owner


def test_a_session_remembers_a_bounded_number_of_turns() -> None:
    session = Session()
    for number in range(MAX_TURNS + 3):
        session.note(str(number), Note())
    assert len(session.notes) == MAX_TURNS and "2" not in session.notes and "3" in session.notes


def test_a_new_block_starts_without_notes() -> None:
    session = begun(Sessions(10, 60))
    session.begin(block_of("2"), "later")
    assert list(session.notes) == ["later"] and not session.notes["later"].noted


def test_what_stands_in_the_block_or_in_a_note_is_not_noted_again() -> None:
    found = [noted("1"), noted("2"), noted("3"), noted("4")]
    new = addition(found, block_of("1"), [noted("2")], frozenset({"3"}))
    assert [one.name for one in new.noted] == ["4"] and not new.left_out


def test_the_best_are_noted_last_and_the_rest_is_left_out() -> None:
    found = [noted(str(number)) for number in range(NOTE_FACTS + 2)]
    new = addition(found, block_of(), [], frozenset())
    assert [one.name for one in new.noted] == [str(number) for number in reversed(range(NOTE_FACTS))]
    assert new.left_out == {str(NOTE_FACTS), str(NOTE_FACTS + 1)}


def test_a_callers_new_context_is_always_noted_and_an_old_one_never() -> None:
    found = [noted(None, "new"), noted(None, "old"), *(noted(str(number)) for number in range(NOTE_FACTS))]
    new = addition(found, block_of(context=("old",)), [], frozenset())
    assert [one.text for one in new.noted if one.name is None] == ["new"] and len(new.noted) == NOTE_FACTS + 1


def test_a_block_is_stale_when_its_terms_changed() -> None:
    block = block_of("1")
    assert block.stale(TERMS) is None
    assert block.stale(Terms("header", None, "auto", None, 1)) == "facts_changed"
    assert block.stale(Terms("other", None, "auto", None, 0)) == "system_prompt"
    assert block.stale(Terms("header", None, "text", None, 0)) is None


def test_a_block_that_was_text_on_demand_is_chosen_anew_when_kv_may_serve() -> None:
    asked = block_of("1", terms=Terms("header", None, "text", None, 0))
    refused = block_of("1", terms=Terms("header", None, "auto", "prompt_logprobs", 0))
    assert asked.stale(TERMS) == refused.stale(TERMS) == "mode"
    assert asked.stale(asked.terms) is None and refused.stale(refused.terms) is None


def test_facts_that_are_gone_or_over_or_match_no_more_may_not_stand_in_a_prompt() -> None:
    here, there = replace(fact(1), metadata={"place": "here"}), replace(fact(2), expires_at=100.0)
    where = parse_filter({"place": "here"})
    assert unfit([here, there], None, 99.0) is None and unfit([here], where, 99.0) is None
    assert unfit([here, there], None, 100.0) == "fact_expired"
    assert unfit([here, None], None, 0.0) == unfit([here, there], where, 0.0) == "facts_changed"
