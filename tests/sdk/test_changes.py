"""What the methods that change, move and watch memories send and return."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from inferscale_sdk import (
    APIConnectionError,
    APIResponseValidationError,
    APITimeoutError,
    Fact,
    PermissionDeniedError,
)
from inferscale_sdk._transfer import BATCH

from .script import Pieces, answer, failure, script, streamed

SAID = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)
FACT = {"id": "f1", "text": "x", "timestamp": "2023-05-08T13:56:00Z", "metadata": {"a": 1}, "novel": True}


def footprint(queued: int) -> httpx.Response:
    return answer(json={"facts": 3, "tokens": 30, "queued": queued})


def test_an_update_sends_what_is_named_and_null_only_for_what_is_to_be_removed() -> None:
    server = script(answer(json=FACT))
    memories = server.client().memories
    assert memories.update("f1", "alice", text="x", metadata={"a": 1, "b": None}).text == "x"
    assert server.body == {"text": "x", "metadata": {"a": 1, "b": None}}
    memories.update("f1", "alice", expires_at=None)
    assert server.body == {"expires_at": None}
    memories.update("f1", "alice", timestamp=SAID, expires_at="2100-01-01")
    assert server.body == {"timestamp": SAID.timestamp(), "expires_at": "2100-01-01"}
    memories.update("f1", "alice", speaker=None, session_id="s2")
    assert server.body == {"speaker": None, "session_id": "s2"}
    assert [(request.method, str(request.url.raw_path, "ascii")) for request in server.requests][:3] == [
        ("PATCH", "/v1/memories/f1?user_id=alice"),
        ("PATCH", "/v1/memories/f1?user_id=alice"),
        ("PATCH", "/v1/memories/f1?user_id=alice"),
    ]


def test_an_update_of_nothing_is_refused_before_it_is_sent() -> None:
    server = script(answer(json=FACT))
    with pytest.raises(ValueError, match="at least one"):
        server.client().memories.update("f1", "alice")
    assert server.requests == []


def test_a_history_gives_its_events_in_order() -> None:
    told = [
        {"event": "added", "at": "2023-05-08T13:56:00Z", "text": None, "metadata": None},
        {"event": "deleted", "at": "2023-05-09T13:56:00Z", "text": None, "metadata": None},
    ]
    server = script(answer(json={"id": "f1", "data": told}))
    history = server.client().memories.history("f1", "alice")
    assert [event.event for event in history] == ["added", "deleted"]
    assert (history.id, len(history), history[0].at, history[1].text) == ("f1", 2, SAID, None)
    assert server.requests[0].url.raw_path == b"/v1/memories/f1/history?user_id=alice"


def test_a_filter_is_sent_with_searches_and_with_every_page() -> None:
    one = {"data": [FACT], "next_cursor": "c1", "has_more": True}
    server = script(answer(json={"data": []}), answer(json=one), answer(json={"data": [FACT]}))
    memories = server.client().memories
    memories.search("alice", "dog?", filter={"topic": "pets"})
    assert server.body == {"user_id": "alice", "query": "dog?", "filter": {"topic": "pets"}}
    assert len(list(memories.list("alice", filter={"city": "Zürich"}))) == 2
    assert [json.loads(request.url.params["filter"]) for request in server.requests[1:]] == [{"city": "Zürich"}] * 2


def test_expiry_is_sent_for_all_facts_and_for_one() -> None:
    server = script(answer(json={"results": []}))
    server.client().memories.add("alice", facts=[{"text": "x", "expires_at": SAID}], expires_at="2100-01-01")
    assert server.body["expires_at"] == "2100-01-01"
    assert server.body["facts"] == [{"text": "x", "expires_at": SAID.timestamp()}]


def test_users_are_listed_over_all_pages_with_their_counts() -> None:
    first = {"data": [{"user_id": "alice", "facts": 2}], "next_cursor": "c1", "has_more": True}
    server = script(answer(json=first), answer(json={"data": [{"user_id": "bob", "facts": 1}]}))
    users = server.client().users.list(limit=1)
    assert [(user.user_id, user.facts) for user in users] == [("alice", 2), ("bob", 1)]
    assert [dict(request.url.params) for request in server.requests] == [
        {"limit": "1"},
        {"limit": "1", "cursor": "c1"},
    ]


async def test_the_async_client_lists_users_too_and_says_when_it_may_not() -> None:
    client = script(answer(json={"data": [{"user_id": "bob", "facts": 1}]}), failure(403)).async_client()
    assert [user.user_id async for user in await client.users.list()] == ["bob"]
    with pytest.raises(PermissionDeniedError):
        await client.users.with_raw_response.list()


def test_an_export_gives_facts_as_they_come_however_the_bytes_are_cut() -> None:
    whole = b"".join(json.dumps(FACT | {"id": f"f{n}"}).encode() + b"\n" for n in range(3))
    server = script(streamed(*(whole[at : at + 7] for at in range(0, len(whole), 7))))
    with server.client().memories.export("alice") as facts:
        exported = list(facts)
    assert [fact.id for fact in exported] == ["f0", "f1", "f2"]
    assert exported[0].raw == FACT | {"id": "f0"}
    assert exported[0].request_id == facts.request_id == "req-9"
    assert server.requests[0].url.raw_path == b"/v1/memories/export?user_id=alice"


async def test_an_async_export_does_the_same() -> None:
    server = script(streamed(json.dumps(FACT).encode() + b"\n"))
    async with await server.async_client().memories.export("alice") as facts:
        assert [fact.text async for fact in facts] == ["x"]


def test_an_export_that_breaks_off_is_an_error_and_never_a_short_success() -> None:
    line = json.dumps(FACT).encode() + b"\n"
    broken = script(streamed(line, httpx.ReadError("gone"))).client().memories.export("alice")
    assert next(iter(broken)).id == "f1"
    with pytest.raises(APIConnectionError):
        list(broken)
    with pytest.raises(APIResponseValidationError, match="within a line"):
        list(script(streamed(line, line[:-5])).client().memories.export("alice"))
    with pytest.raises(APIResponseValidationError, match="not JSON"):
        list(script(streamed(b"oops\n")).client().memories.export("alice"))


def test_an_export_that_is_closed_early_drops_the_connection() -> None:
    response = streamed(json.dumps(FACT).encode() + b"\n", b"never read\n")
    with script(response).client().memories.export("alice") as facts:
        assert next(iter(facts)).id == "f1"
    assert isinstance(response.stream, Pieces) and response.stream.closed >= 1


def test_an_import_takes_facts_dicts_and_lines() -> None:
    server = script(answer(json={"imported": 3, "duplicates": 0, "failed": []}))
    fact = Fact.model_validate(FACT)
    result = server.client().memories.import_("alice", [fact, {"text": "y", "timestamp": SAID}, b'{"text": "z"}\r\n'])
    sent = [json.loads(line) for line in server.requests[0].content.splitlines()]
    assert (sent[0]["id"], sent[0]["timestamp"], sent[0]["novel"]) == ("f1", "2023-05-08T13:56:00Z", True)
    assert sent[1:] == [{"text": "y", "timestamp": SAID.timestamp()}, {"text": "z"}]
    assert server.headers["content-type"] == "application/x-ndjson"
    assert dict(server.requests[0].url.params) == {"user_id": "alice"}
    assert (result.imported, result.failed) == (3, ())


def test_a_large_import_goes_in_batches_and_its_line_numbers_are_those_of_the_whole() -> None:
    part = {"imported": 1, "duplicates": 2, "failed": [{"line": 4, "reason": "no"}]}
    server = script(failure(503), answer(json=part))
    result = server.client().memories.import_("alice", ({"text": str(n)} for n in range(2 * BATCH + 1)))
    assert [request.content.count(b"\n") for request in server.requests] == [BATCH, BATCH, BATCH, 1]
    assert (result.imported, result.duplicates) == (3, 6)
    assert [one.line for one in result.failed] == [4, BATCH + 4, 2 * BATCH + 4]


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"text": "x"}, TypeError),
        (b"{}", TypeError),
        ("x", TypeError),
        (["x"], TypeError),
        ([b"1\n2"], ValueError),
        ([{"text": "x", "timestamp": datetime(2024, 5, 1)}], ValueError),
    ],
)
async def test_an_import_that_cannot_be_meant_is_refused_before_it_is_sent(facts: Any, kind: type[Exception]) -> None:
    server = script(answer())
    with pytest.raises(kind):
        server.client().memories.import_("alice", facts)
    with pytest.raises(kind):
        await server.async_client().memories.import_("alice", facts)
    assert server.requests == []


def test_a_raw_export_and_import_are_one_request_each() -> None:
    server = script(
        httpx.Response(200, content=json.dumps(FACT).encode() + b"\n"), answer(json={"imported": 1, "duplicates": 0})
    )
    raw = server.client().memories.with_raw_response
    [fact] = raw.export("alice").parse()
    assert raw.import_("alice", [fact]).parse().imported == 1


def test_waiting_ends_when_nothing_of_the_user_is_queued() -> None:
    server = script(footprint(2), footprint(1), footprint(0))
    assert server.client().memories.wait_encoded("alice").queued == 0
    assert len(server.requests) == 3
    assert server.naps_s == [0.1, 0.2]


async def test_whoever_waits_is_told_how_many_facts_still_wait() -> None:
    server, told = script(footprint(2), footprint(1), footprint(0)), list[int]()
    server.client().memories.wait_encoded("alice", on_progress=lambda seen: told.append(seen.queued))
    server = script(footprint(1), footprint(0))
    await server.async_client().memories.wait_encoded("alice", on_progress=lambda seen: told.append(seen.queued))
    assert told == [2, 1, 0, 1, 0]


async def test_waiting_gives_up_when_the_time_is_up() -> None:
    server = script(footprint(2))
    with pytest.raises(APITimeoutError, match="2 facts"):
        await server.async_client().memories.wait_encoded("alice", timeout=1e-9)
    with pytest.raises(ValueError, match="timeout"):
        server.client().memories.wait_encoded("alice", timeout=0)
