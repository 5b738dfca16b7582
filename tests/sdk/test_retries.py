"""Which failed tries are repeated, how often, and after how long."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from inferscale_sdk import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    RateLimitError,
)
from inferscale_sdk._retry import LASTING_CONFLICTS, MAX_DELAY_S, backoff_s, retry_after_s, retry_delay_s

from .script import CHAT, answer, failure, script

SERVER = Path(__file__).parents[2] / "server" / "inferscale_server"
NOW_S = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_a_passing_failure_is_tried_again(status: int) -> None:
    server = script(failure(status), answer(json=CHAT))
    assert server.client().chat("alice", "hi").text == "Bruno"
    assert len(server.requests) == 2
    assert len(server.naps_s) == 1


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 413, 422, 507])
def test_a_lasting_failure_is_not_tried_again(status: int) -> None:
    server = script(failure(status), answer(json=CHAT))
    with pytest.raises(APIStatusError) as caught:
        server.client().chat("alice", "hi")
    assert caught.value.status_code == status
    assert len(server.requests) == 1


@pytest.mark.parametrize(("code", "tries"), [("duplicate_fact", 1), ("idempotency_mismatch", 1), ("upkeep_running", 3)])
def test_a_conflict_is_tried_again_only_if_it_can_pass(code: str, tries: int) -> None:
    server = script(answer(409, {"error": {"message": "no", "code": code}}))
    with pytest.raises(ConflictError) as caught:
        server.client().memories.update("f1", "alice", text="x")
    assert (caught.value.code, len(server.requests)) == (code, tries)


def test_the_lasting_conflicts_are_the_servers_but_the_one_that_passes() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in SERVER.rglob("*.py"))
    codes = set(re.findall(r'raise Conflict\([^)]*?code="(\w+)"', sources))
    assert codes - {"upkeep_running"} == LASTING_CONFLICTS


@pytest.mark.parametrize("broken", [httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.ReadTimeout("")])
async def test_a_broken_connection_is_tried_again_by_both_clients(broken: Exception) -> None:
    server = script(broken, answer(json=CHAT))
    assert server.client().chat("alice", "hi").text == "Bruno"
    twin = script(broken, answer(json=CHAT))
    assert (await twin.async_client().chat("alice", "hi")).text == "Bruno"
    assert len(server.naps_s) == len(twin.naps_s) == 1


@pytest.mark.parametrize("max_retries", [0, 1, 4])
def test_it_gives_up_after_max_retries_with_the_last_error(max_retries: int) -> None:
    server = script(failure(503))
    with pytest.raises(InternalServerError):
        server.client(max_retries).chat("alice", "hi")
    assert len(server.requests) == max_retries + 1


def test_a_timeout_and_a_refused_connection_are_told_apart() -> None:
    with pytest.raises(APITimeoutError):
        script(httpx.ReadTimeout("slow")).client().status()
    with pytest.raises(APIConnectionError) as caught:
        script(httpx.ConnectError("refused")).client().status()
    assert not isinstance(caught.value, APITimeoutError)
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    assert "is `inferscale serve` running, and ready?" in str(caught.value)


@pytest.mark.parametrize(("given", "waited_s"), [(3, 3), (None, 30), (httpx.Timeout(9.0, read=2.5), 2.5)])
async def test_a_timeout_says_after_how_many_seconds(given: Any, waited_s: float) -> None:
    server = script(httpx.ReadTimeout("slow"))
    with pytest.raises(APITimeoutError, match=rf"no answer within {waited_s} s \(ReadTimeout\)"):
        server.client(0).with_options(timeout=given).status()
    with pytest.raises(APITimeoutError, match=rf"within {waited_s} s"):
        await server.async_client(0).with_options(timeout=given).status()


def test_a_connection_that_was_not_made_in_time_tells_the_time_for_connecting() -> None:
    with pytest.raises(APITimeoutError, match=r"within 5 s \(ConnectTimeout\)"):
        script(httpx.ConnectTimeout("slow")).client(0).status()


def test_a_connection_that_broke_later_is_not_blamed_on_a_server_that_is_off() -> None:
    with pytest.raises(APIConnectionError) as caught:
        script(httpx.ReadError("reset")).client().status()
    assert "inferscale serve" not in str(caught.value)


def test_all_tries_of_a_post_share_one_idempotency_key() -> None:
    server = script(failure(500), failure(500), answer(json={"results": []}))
    server.client().memories.add("alice", facts=["x"])
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(server.requests) == 3
    assert len(keys) == 1


def test_two_calls_have_two_idempotency_keys() -> None:
    server = script(answer(json={"results": []}))
    client = server.client()
    client.memories.add("alice", facts=["x"])
    client.memories.add("alice", facts=["x"])
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 2


def test_a_key_of_ones_own_is_sent() -> None:
    server = script(answer(json={"results": []}))
    server.client().memories.add("alice", facts=["x"], idempotency_key="mine-1")
    assert server.headers["idempotency-key"] == "mine-1"


def test_a_get_carries_no_idempotency_key() -> None:
    server = script(answer(json={"id": "f1", "text": "x"}))
    server.client().memories.get("f1", "alice")
    assert "idempotency-key" not in server.headers


def test_retry_after_is_obeyed() -> None:
    server = script(failure(429, retry_after="7"), answer(json=CHAT))
    server.client().chat("alice", "hi")
    assert server.naps_s == [7.0]


def test_a_server_that_asks_for_too_long_a_wait_is_not_tried_again() -> None:
    server = script(failure(429, retry_after="3600"))
    with pytest.raises(RateLimitError) as caught:
        server.client().chat("alice", "hi")
    assert caught.value.headers["retry-after"] == "3600"
    assert server.naps_s == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("1.5", 1.5),
        ("-3", 0.0),
        (format_datetime(datetime(2026, 3, 1, 12, 0, 9, tzinfo=UTC), usegmt=True), 9.0),
        (format_datetime(datetime(2026, 3, 1, 11, 0, 0, tzinfo=UTC), usegmt=True), 0.0),
        ("soon", None),
        ("nan", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_reads_seconds_and_dates(header: str | None, seconds: float | None) -> None:
    assert retry_after_s(header, NOW_S) == seconds


def test_backoff_doubles_up_to_a_cap_and_jitter_only_shortens_it() -> None:
    assert [backoff_s(tries, 0.0) for tries in (0, 1, 2, 3, 4, 5, 5000)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert backoff_s(0, 1.0) == 0.375
    assert all(0 < backoff_s(tries, dice) <= MAX_DELAY_S for tries in range(20) for dice in (0.0, 0.5, 1.0))


def test_an_unreadable_retry_after_falls_back_to_backoff() -> None:
    error = RateLimitError("no", status_code=429, headers={"retry-after": "soon"})
    assert retry_delay_s(error, 0, 2, NOW_S, 0.0) == 0.5
    assert retry_delay_s(error, 2, 2, NOW_S, 0.0) is None
    assert retry_delay_s(BadRequestError("no", status_code=400), 0, 2, NOW_S, 0.0) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_stream_request_is_tried_again_before_its_first_byte(stream: bool) -> None:
    done = httpx.Response(200, content=b"data: [DONE]\n\n") if stream else answer(json=CHAT)
    server = script(failure(503), done)
    await server.async_client().chat("alice", "hi", stream=stream)
    assert len(server.requests) == 2
