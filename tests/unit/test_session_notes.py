"""Notes: turns are told apart by all that was said before, and a note is data, not the user's words."""

from __future__ import annotations

from inferscale_server.session_notes import NOTE_INTRO, Note, Noted, Said, texts_by_place, user_turns

TALK = (Said("system", "Be brief."), Said("user", "Hello"), Said("assistant", "Hi"), Said("user", "And now?"))
GOATS = Noted("1", "goats", "- goats\n", 0.5)
TRAINS = Noted("2", "trains", "- trains\n", 0.7)


def test_a_turn_keeps_its_digest_while_the_conversation_goes_on() -> None:
    first, second = user_turns(TALK)
    assert (first.place, second.place) == (1, 3)
    assert user_turns((*TALK, Said("assistant", "Fine"), Said("user", "More")))[:2] == (first, second)


def test_turns_of_conversations_that_differed_before_are_different_turns() -> None:
    branched = (*TALK[:2], Said("assistant", "Hello!"), TALK[3])
    assert user_turns(branched)[0] == user_turns(TALK)[0]
    assert user_turns(branched)[1] != user_turns(TALK)[1]


def test_words_cannot_move_from_one_message_to_the_next() -> None:
    assert (
        user_turns((Said("user", "ab"), Said("user", "c")))[1] != user_turns((Said("user", "a"), Said("user", "bc")))[1]
    )


def test_a_note_is_headed_as_information_and_ends_with_a_blank_line() -> None:
    assert Note((GOATS, TRAINS)).text == NOTE_INTRO + "- goats\n- trains\n\n"
    assert Note().text == ""


def test_a_note_that_grows_keeps_what_it_said() -> None:
    grown = Note((GOATS,), frozenset({"7"})).then((TRAINS,), ["8"])
    assert grown.noted == (GOATS, TRAINS) and grown.left_out == {"7", "8"}


def test_notes_are_placed_before_their_own_turns() -> None:
    turns = user_turns(TALK)
    notes = {turns[1].digest: Note((GOATS,)), turns[0].digest: Note(), "another conversation": Note((TRAINS,))}
    assert texts_by_place(turns, notes) == {3: Note((GOATS,)).text}
