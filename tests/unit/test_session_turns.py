"""Turns of a session that meet others, or facts that changed without being rewritten, or no room."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from inferscale_server.costs import Costs, Line
from inferscale_server.filters import parse_filter
from inferscale_server.plan import Frame
from inferscale_server.session_notes import Said
from inferscale_server.session_recall import SessionAsk
from inferscale_server.types import FactChange

from .builders import ALICE
from .test_session_recall import LONG_TALK, ROOM, Desk, Talk, desk, told

__all__ = ["desk"]


async def test_the_same_turn_twice_at_once_has_its_note_in_both_prompts(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb", "trains leave at noon")
    talk = Talk(desk)
    await talk.ask("goats eat goats climb", LONG_TALK, k=2)
    talk.said.append(Said("user", "when do trains leave"))
    asked = SessionAsk(ALICE, "s", tuple(talk.said), "auto", k=1)

    async def turn(rounds: int) -> tuple[int, ...]:
        async def slowly(notes: Mapping[int, str]) -> Frame:
            for _ in range(rounds):
                await asyncio.sleep(0.02)
            return await talk._frame(notes)

        served = await desk.sessions.turn(asked, slowly, lambda frame: ROOM)
        assert told(served) == ("kept", "same_block") and served.told is not None and served.plan is not None
        assert [one.text for one in served.told.noted] == ["trains leave at noon"]
        return served.plan.prompt_ids

    quick, slow = await asyncio.gather(turn(0), turn(5))
    assert quick == slow and set(desk.tokenize("noon")) <= set(quick)


async def test_a_fact_that_matches_the_filter_no_more_leaves_the_block(desk: Desk) -> None:
    (goats, _) = await desk.add("goats eat grass", "goats climb", metadata={"place": "here"})
    talk, where = Talk(desk), parse_filter({"place": "here"})
    await talk.ask("what do goats eat", LONG_TALK, where=where)
    assert told(await talk.ask("what do goats eat", LONG_TALK, where=where)) == ("kept", "same_block")
    await desk.memory.update(ALICE, goats, FactChange(metadata={"mood": "good"}))
    assert told(await talk.ask("what do goats eat", LONG_TALK, where=where)) == ("kept", "same_block")
    await desk.memory.update(ALICE, goats, FactChange(metadata={"place": "elsewhere"}))
    turn = await talk.ask("what do goats eat", where=where)
    assert told(turn) == ("replanned", "facts_changed") and goats not in {line.name for line in turn.shown}


async def test_an_end_that_a_fact_got_later_counts_in_the_block_and_in_a_note(desk: Desk) -> None:
    (goats,) = await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    (trains,) = await desk.add("trains leave at noon")
    assert told(await talk.ask("when do trains leave", LONG_TALK)) == ("kept", "same_block")
    await desk.memory.update(ALICE, trains, FactChange(expires_at=3e9))
    await desk.memory.update(ALICE, goats, FactChange(expires_at=4e9))
    desk.now = 3e9
    assert told(await talk.ask("what do goats eat", LONG_TALK)) == ("replanned", "fact_expired")
    await desk.memory.delete(ALICE, trains)
    await talk.ask("what do goats eat", LONG_TALK)
    desk.now = 4e9
    assert told(await talk.ask("what do goats eat")) == ("replanned", "fact_expired")


async def test_a_block_without_room_is_none_and_the_next_turn_begins_one(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    turn = await talk.ask("do goats climb", LONG_TALK, room=0)
    assert turn.told is None and turn.shown == () and turn.plan is not None and turn.plan.lines == ()
    turn = await talk.ask("what do goats eat")
    assert told(turn) == ("replanned", "no_room") and turn.plan is not None and len(turn.plan.lines) == 2


async def test_a_conversation_that_is_too_long_with_its_notes_goes_on_without_them(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    await desk.add("trains leave at noon")
    assert told(await talk.ask("when do trains leave", LONG_TALK)) == ("kept", "same_block")
    talk.said.append(Said("user", "and do goats eat grass"))

    async def frame_of(notes: Mapping[int, str]) -> Frame | None:
        return None if notes else await talk._frame(notes)

    turn = await desk.sessions.turn(SessionAsk(ALICE, "s", tuple(talk.said), "auto"), frame_of, lambda frame: ROOM)
    assert told(turn) == ("replanned", "no_room") and turn.told is not None and turn.told.noted == ()
    assert {line.text for line in turn.shown} == {"goats eat grass", "trains leave at noon"}


async def test_what_was_weighed_for_the_first_prompt_is_not_told_of_a_later_one(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    desk.sessions._recall.costs = Costs(prefill=Line(20.0, 800.0), inject=Line(1.0, 1.0), block_tokens=16)
    talk = Talk(desk)
    begun, kept = await talk.ask("what do goats eat", LONG_TALK), await talk.ask("do goats climb", LONG_TALK)
    assert begun.plan is not None and begun.plan.estimate is not None
    assert told(kept)[0] == "kept" and kept.plan is not None and kept.plan.estimate is None


async def test_only_the_block_that_failed_is_dropped_and_no_session_is_made_for_it(desk: Desk) -> None:
    await desk.add("goats eat grass")
    await Talk(desk).ask("what do goats eat", LONG_TALK)
    block = desk.kept.of(ALICE, "s").block
    assert block is not None
    desk.kept.forget_block(ALICE, "s", "an older plan's")
    assert desk.kept.of(ALICE, "s").block is block
    desk.kept.forget_block(ALICE, "s", block.plan.digest)
    assert desk.kept.of(ALICE, "s").block is None
    desk.kept.forget_block(ALICE, "another", block.plan.digest)
    assert len(desk.kept) == 1


async def test_without_a_message_of_the_users_new_context_goes_into_a_new_block(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk, said=[Said("system", "be kind"), Said("assistant", LONG_TALK)])
    await talk.again(context=("the shop opens at nine",))
    turn = await talk.again(context=("the shop is closed on sundays",))
    assert told(turn) == ("replanned", "no_room") and turn.plan is not None
    assert set(desk.tokenize("sundays")) <= set(turn.plan.prompt_ids)


async def test_a_fact_that_ends_while_it_is_noted_is_not_told(desk: Desk) -> None:
    await desk.add("goats eat grass")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    (trains,) = await desk.add("trains leave at noon")
    talk.said.append(Said("user", "when do trains leave"))

    async def frame_of(notes: Mapping[int, str]) -> Frame:
        if notes:
            await desk.memory.update(ALICE, trains, FactChange(expires_at=3e9))
            desk.now = 3e9
        return await talk._frame(notes)

    asked = SessionAsk(ALICE, "s", tuple(talk.said), "auto", k=1)
    assert told(await desk.sessions.turn(asked, frame_of, lambda frame: ROOM)) == ("replanned", "fact_expired")


@pytest.mark.parametrize("more", [{"min_score": 2.0}, {"room": 0}])
async def test_a_turn_without_memory_leaves_the_block_that_another_chose_meanwhile(
    desk: Desk, more: dict[str, float]
) -> None:
    await desk.add("goats eat grass", "goats climb")
    talk = Talk(desk)
    await talk.ask("what do goats eat", LONG_TALK)
    said = (*talk.said, Said("user", "do goats climb"))

    async def slowly(notes: Mapping[int, str]) -> Frame:
        await asyncio.sleep(0.05)
        return Frame((7, 7, 7), (9,))  # another system prompt: a new block is due

    async def quickly(notes: Mapping[int, str]) -> Frame:
        return Frame((8, 8, 8), (9,))

    slow = SessionAsk(ALICE, "s", said, "auto", min_score=more.get("min_score"))
    turn = asyncio.create_task(desk.sessions.turn(slow, slowly, lambda frame: int(more.get("room", ROOM))))
    await asyncio.sleep(0.01)
    await desk.sessions.turn(SessionAsk(ALICE, "s", said, "auto"), quickly, lambda frame: ROOM)
    chosen = desk.kept.of(ALICE, "s").block
    await turn
    assert chosen is not None and desk.kept.of(ALICE, "s").block is chosen
