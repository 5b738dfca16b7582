"""Turns of encode requests and of what the model writes beside chats, on a clock that only sleeping moves."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from itertools import pairwise

import pytest

from inferscale_server.engine.pace import (
    ARRIVING_S,
    PATIENCE_S,
    PATIENCE_TIMES,
    QUIET_S,
    RELIEVED_S,
    REST,
    REST_AT_MOST_S,
    STARVED_FOR_S,
    STARVED_TOKENS,
    STEP_TOKENS,
    WAIT_AT_MOST_S,
    WRITES_AT_ONCE,
    WRITING_REST,
    Pace,
)

STEP_S = 0.08


class Engine:
    """Encode requests that take STEP_S each; notes when they began and how many were under way."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.began_s: list[float] = []
        self.under_way = self.most_under_way = 0
        self.pace = Pace(lambda: self.now_s, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)

    async def encode(self) -> None:
        await self._work(self.pace.encoding(10))

    async def write(self) -> None:
        await self._work(self.pace.writing())

    async def _work(self, turn: AbstractAsyncContextManager[None]) -> None:
        async with turn:
            self.began_s.append(self.now_s)
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            await asyncio.sleep(0)
            self.now_s += STEP_S
            self.under_way -= 1


@pytest.fixture
def engine() -> Engine:
    return Engine()


async def test_without_chats_encode_requests_go_together(engine: Engine) -> None:
    await asyncio.gather(*[engine.encode() for _ in range(8)])
    assert engine.most_under_way == 8 and engine.began_s == [100.0] * 8


async def test_beside_chats_they_go_one_at_a_time_with_a_rest_between(engine: Engine) -> None:
    engine.pace.chat_arrived()
    engine.now_s += ARRIVING_S
    await asyncio.gather(*[engine.encode() for _ in range(3)])
    assert engine.most_under_way == 1
    first, second, third = engine.began_s
    assert second - first >= (1 + REST) * STEP_S and third - second >= (1 + REST) * STEP_S


async def test_none_starts_while_a_chat_is_under_way_or_about_to_be(engine: Engine) -> None:
    engine.pace.chat_arrived()
    waiting = asyncio.create_task(engine.encode())
    await asyncio.sleep(0)
    with engine.pace.chatting():
        for _ in range(10):
            await asyncio.sleep(0)
        assert engine.began_s == []
        left_s = engine.now_s
    await waiting
    assert engine.began_s[0] >= left_s + ARRIVING_S


async def test_a_load_without_a_gap_does_not_stop_encoding(engine: Engine) -> None:
    with engine.pace.chatting():
        await asyncio.gather(engine.encode(), engine.encode())
    assert engine.began_s[0] == pytest.approx(100.0 + WAIT_AT_MOST_S, abs=0.01)
    assert engine.began_s[1] - engine.began_s[0] == pytest.approx((1 + REST) * STEP_S + WAIT_AT_MOST_S, abs=0.02)


async def test_a_request_that_waited_long_for_chats_in_the_engine_is_not_rested_for_as_long(engine: Engine) -> None:
    with engine.pace.chatting():
        async with engine.pace.encoding(10):
            engine.now_s += 20
        ended_s = engine.now_s
        await engine.encode()
    assert REST_AT_MOST_S <= engine.began_s[0] - ended_s <= REST_AT_MOST_S + WAIT_AT_MOST_S + 0.02


async def test_encoding_that_chats_leave_no_time_goes_first_for_a_while_and_with_more_tokens(engine: Engine) -> None:
    with engine.pace.ahead():
        engine.now_s += STEP_S
    with engine.pace.chatting():
        assert (engine.pace.starved, engine.pace.most_tokens) == (False, STEP_TOKENS)
        engine.pace.starve()
        assert (engine.pace.starved, engine.pace.most_tokens) == (True, STARVED_TOKENS)
        with engine.pace.ahead():
            engine.now_s += 2 * RELIEVED_S
        assert engine.pace.starved, "it waited for a full step"
        engine.now_s += STARVED_FOR_S
        assert (engine.pace.starved, engine.pace.most_tokens) == (False, STEP_TOKENS)


async def test_it_goes_behind_chats_again_once_they_leave_time(engine: Engine) -> None:
    engine.pace.chat_arrived()
    engine.pace.starve()
    with engine.pace.ahead():
        engine.now_s += STEP_S
    assert not engine.pace.starved


async def test_what_waited_for_chats_says_nothing_of_how_quick_the_engine_is(engine: Engine) -> None:
    with engine.pace.chatting():
        async with engine.pace.patience():
            engine.now_s += PATIENCE_S - 0.5
        engine.pace.starve()
        with engine.pace.ahead():
            engine.now_s += 2 * RELIEVED_S
        assert engine.pace.starved and engine.pace.patience_s == PATIENCE_S


async def test_an_engine_that_takes_long_for_any_request_is_not_taken_for_a_busy_one(engine: Engine) -> None:
    engine.pace.chat_arrived()
    engine.now_s += ARRIVING_S
    assert engine.pace.patience_s == PATIENCE_S
    async with engine.pace.patience():
        engine.now_s += PATIENCE_S
    assert engine.pace.patience_s == PATIENCE_TIMES * PATIENCE_S
    engine.pace.starve()
    with engine.pace.ahead():
        engine.now_s += 1.5 * PATIENCE_S
    assert not engine.pace.starved


async def test_when_the_chats_are_over_nothing_is_starved(engine: Engine) -> None:
    engine.pace.chat_arrived()
    engine.pace.starve()
    engine.now_s += QUIET_S
    engine.pace.starve()
    assert not engine.pace.starved and engine.pace.most_tokens is None


async def test_some_time_after_the_last_chat_nothing_is_held_back(engine: Engine) -> None:
    with engine.pace.chatting():
        pass
    engine.now_s += QUIET_S
    await asyncio.gather(engine.encode(), engine.encode())
    assert engine.most_under_way == 2


async def test_an_encode_request_that_fails_gives_its_turn_away(engine: Engine) -> None:
    engine.pace.chat_arrived()
    with pytest.raises(ValueError, match="lost"):
        async with engine.pace.encoding(10):
            raise ValueError("lost")
    await engine.encode()
    assert len(engine.began_s) == 1


async def test_requests_are_small_until_long_after_the_last_chat(engine: Engine) -> None:
    assert engine.pace.most_tokens is None
    engine.pace.chat_arrived()
    assert engine.pace.most_tokens == STEP_TOKENS
    with engine.pace.chatting():
        engine.now_s += 2 * QUIET_S
        assert engine.pace.most_tokens == STEP_TOKENS
    engine.now_s += QUIET_S - 1
    assert engine.pace.most_tokens == STEP_TOKENS
    engine.now_s += 1
    assert engine.pace.most_tokens is None


async def test_a_chat_every_few_seconds_never_meets_two_requests_at_once(engine: Engine) -> None:
    for _ in range(4):
        with engine.pace.chatting():
            pass
        engine.now_s += 6.0
        await asyncio.gather(*[engine.encode() for _ in range(8)])
    assert engine.most_under_way == 1


async def test_without_chats_a_few_texts_are_written_at_once(engine: Engine) -> None:
    await asyncio.gather(*[engine.write() for _ in range(3 * WRITES_AT_ONCE)])
    assert engine.most_under_way == WRITES_AT_ONCE and len(engine.began_s) == 3 * WRITES_AT_ONCE


async def test_beside_chats_one_text_is_written_at_a_time_with_a_rest_between(engine: Engine) -> None:
    engine.pace.chat_arrived()
    engine.now_s += ARRIVING_S
    await asyncio.gather(*[engine.write() for _ in range(2 * WRITES_AT_ONCE)])
    assert engine.most_under_way == 1
    gaps = [later - earlier for earlier, later in pairwise(engine.began_s)]
    assert len(gaps) == 2 * WRITES_AT_ONCE - 1 and min(gaps) >= (1 + WRITING_REST) * STEP_S


async def test_a_load_without_a_gap_does_not_stop_writing(engine: Engine) -> None:
    with engine.pace.chatting():
        await asyncio.gather(*[engine.write() for _ in range(2 * WRITES_AT_ONCE)])
    assert len(engine.began_s) == 2 * WRITES_AT_ONCE


async def test_a_text_that_is_written_does_not_hold_encoding_up(engine: Engine) -> None:
    engine.pace.chat_arrived()
    async with engine.pace.writing():
        await engine.encode()
    assert len(engine.began_s) == 1
