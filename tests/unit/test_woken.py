"""Background work: woken it works, after a fault it tries again, and a fault that stays costs little."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from inferscale_server.woken import LONGEST_PAUSE_S, work_when_woken


@dataclass
class Work:
    """Fails at these tries; ends the background where its script ends."""

    script: str
    left: bool = True
    tries: int = 0
    pauses: list[float] = field(default_factory=list)
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def work(self) -> None:
        self.tries += 1
        if self.tries > len(self.script):
            raise asyncio.CancelledError
        if self.script[self.tries - 1] == "x":
            raise RuntimeError("planted")
        self.wake.set()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def run(self) -> None:
        self.wake.set()
        with suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(None if self.left else 0.01):
                await work_when_woken(self.wake, self.work, lambda: self.left, "this", self.sleep)


async def test_each_further_fault_in_a_row_is_waited_for_longer_up_to_a_bound() -> None:
    work = Work("xxxxxxx")
    await work.run()
    assert work.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


async def test_after_work_that_was_done_the_next_fault_is_the_first() -> None:
    work = Work("xx.x.")
    await work.run()
    assert work.pauses == [1.0, 2.0, 1.0]


async def test_where_a_fault_left_nothing_it_is_not_tried_again_before_somebody_asks() -> None:
    work = Work("x", left=False)
    await work.run()
    assert work.tries == 1 and work.pauses == [1.0]


async def test_a_fault_is_told_with_what_was_done(caplog: pytest.LogCaptureFixture) -> None:
    await Work("x").run()
    assert [record.getMessage() for record in caplog.records] == ["this failed: RuntimeError"]
