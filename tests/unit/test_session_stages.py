"""Turns of a session that wait for cold facts: what the wait is called, and when there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from inferscale_server.costs import Costs, Line
from inferscale_server.plan import Frame
from inferscale_server.session_notes import Said
from inferscale_server.session_recall import SessionAsk

from .builders import ALICE
from .test_session_recall import LONG_TALK, ROOM, Desk, Talk
from .test_session_recall import desk as desk  # the fixture


@dataclass
class Clock:
    """Seconds that pass when they are told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


async def test_a_turn_tells_staging_from_planning_and_counts_no_rendering(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await desk.add("goats eat grass", "goats climb")
    talk, clock = Talk(desk), Clock()
    await talk.ask("what do goats eat")
    desk.kept.of(ALICE, "s").drop("kv_gone")
    await desk.cool()
    for module in ("session_recall", "staged_plan"):
        monkeypatch.setattr(f"inferscale_server.{module}.perf_counter", clock)
    desk.engine.during_copy = lambda: clock.passes(5)

    async def frame_of(notes: Mapping[int, str]) -> Frame:
        clock.passes(60)
        return await talk._frame(notes)

    turn = await desk.sessions.turn(SessionAsk(ALICE, "s", tuple(talk.said), "auto"), frame_of, lambda frame: ROOM)
    assert set(turn.staged.values()) == {"host"} and clock.now == 65  # the same words are rendered once
    assert (turn.stage_ms, turn.plan_ms) == (5_000, 0)

    await desk.add("trains leave at noon")
    talk.said += [Said("assistant", LONG_TALK), Said("user", "when do trains leave")]
    turn = await desk.sessions.turn(SessionAsk(ALICE, "s", tuple(talk.said), "auto"), frame_of, lambda frame: ROOM)
    assert turn.told is not None and len(turn.told.noted) == 1 and clock.now == 65 + 2 * 60
    assert (turn.stage_ms, turn.plan_ms) == (0, 0)


async def test_a_new_block_that_text_serves_sooner_brings_nothing_up(desk: Desk) -> None:
    await desk.add("goats eat grass", "goats climb")
    await Talk(desk).ask("what do goats eat")
    await desk.cool()
    desk.kept.forget_owner(ALICE)
    copies = list(desk.engine.copies)
    desk.sessions._recall.costs = Costs(prefill=Line(1.0, 1.0), inject=Line(50.0, 1.0), block_tokens=16)
    turn = await Talk(desk).ask("what do goats eat")
    assert turn.plan is not None and turn.plan.reason == "text_cheaper" and desk.engine.copies == copies
