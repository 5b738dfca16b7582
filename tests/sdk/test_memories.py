"""What the memory methods send and return."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from inferscale_sdk import APIResponseValidationError, FactInput, NotFoundError

from .script import answer, failure, script

ADDED = {"results": [{"id": "f1", "text": "x", "status": "stored"}, {"text": "y", "status": "failed", "reason": "r"}]}


SAID = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


def page(numbers: range, cursor: str | None) -> httpx.Response:
    facts = [{"id": f"f{number}", "text": str(number)} for number in numbers]
    return answer(json={"data": facts, "next_cursor": cursor, "has_more": cursor is not None})


def test_facts_are_sent_as_texts_or_with_their_circumstances() -> None:
    server = script(answer(json=ADDED))
    moment = datetime(2024, 5, 1, tzinfo=UTC)
    given: FactInput = {"text": "y", "speaker": "Bob", "timestamp": moment, "metadata": {"a": 1}}
    result = server.client().memories.add("alice", facts=["x", given], session_id="s1")
    assert server.body == {
        "user_id": "alice",
        "session_id": "s1",
        "facts": ["x", {"text": "y", "speaker": "Bob", "timestamp": moment.timestamp(), "metadata": {"a": 1}}],
    }
    assert result.ids == ("f1",)
    assert [outcome.status for outcome in result] == ["stored", "failed"]
    assert (len(result), result[1].reason, result.request_id) == (2, "r", "req-1")


def test_messages_are_sent_with_time_and_metadata() -> None:
    server = script(answer(json=ADDED))
    messages = [{"role": "user", "content": "I have a dog"}]
    server.client().memories.add("alice", messages=messages, timestamp=12.5, metadata={"a": 1}, infer=False)
    assert server.body == {
        "user_id": "alice",
        "messages": messages,
        "timestamp": 12.5,
        "metadata": {"a": 1},
        "infer": False,
    }


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        ({}, ValueError, "exactly one"),
        ({"facts": ["x"], "messages": [{}]}, ValueError, "exactly one"),
        ({"facts": []}, ValueError, "facts must not be empty"),
        ({"facts": "x"}, TypeError, "facts must be a list"),
        ({"facts": [7]}, TypeError, "a fact must be"),
        ({"facts": [{"speaker": "Bob"}]}, ValueError, "needs 'text'"),
        ({"messages": {"role": "user"}}, TypeError, "messages must be a list"),
        ({"facts": ["x"], "timestamp": datetime(2024, 5, 1)}, ValueError, "time zone"),
        ({"facts": ["x"], "timestamp": "yesterday"}, ValueError, "timestamp='yesterday': must be ISO 8601"),
        ({"facts": ["x"], "expires_at": [7]}, TypeError, "expires_at must be a datetime"),
        ({"facts": [{"text": "x", "timestamp": "8 May"}]}, ValueError, "timestamp='8 May'"),
        ({"facts": ["x"], "idempotency_key": ""}, ValueError, "idempotency_key"),
        ({"facts": ["x"], "idempotency_key": "a\nb"}, ValueError, "idempotency_key"),
    ],
)
def test_an_add_that_cannot_be_meant_is_refused_before_it_is_sent(
    options: dict[str, Any], kind: type[Exception], problem: str
) -> None:
    server = script(answer(json=ADDED))
    with pytest.raises(kind, match=problem):
        server.client().memories.add("alice", **options)
    assert server.requests == []


async def test_facts_without_their_name_are_told_how_to_be_given() -> None:
    server, facts = script(answer(json=ADDED)), "My dog is called Bruno."
    client, twin = server.client(), server.async_client()
    hint = r'client\.memories\.add\("alice", facts=\['
    for add in (client.memories.add, client.memories.with_raw_response.add, client.for_user("alice").memories.add):
        with pytest.raises(TypeError, match=hint):
            add("alice", facts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=hint):
        await twin.memories.add("alice", facts)  # type: ignore[arg-type]
    assert server.requests == []


@pytest.mark.parametrize("written", ["2025-05-08", "2025-05-08T13:56:00Z", "20250508T1356+0200", 1.5, 7])
def test_a_moment_in_any_form_of_iso_8601_and_in_seconds_is_sent_as_it_is(written: str | float) -> None:
    server = script(answer(json=ADDED))
    server.client().memories.add("alice", facts=["x"], timestamp=written)
    assert server.body["timestamp"] == written


@pytest.mark.parametrize(("k", "kind"), [(0, ValueError), (-3, ValueError), ("5", TypeError), (True, TypeError)])
async def test_a_count_that_is_none_is_refused_before_it_is_sent(k: Any, kind: type[Exception]) -> None:
    server = script(answer(json={"data": []}))
    client, twin = server.client(), server.async_client()
    for refused in (
        lambda: client.memories.search("alice", "dog?", k=k),
        lambda: client.memories.list("alice", limit=k),
        lambda: client.users.list(limit=k),
        lambda: client.chat("alice", "dog?", memory={"k": k}),
    ):
        with pytest.raises(kind, match=r"k|limit"):
            refused()
    with pytest.raises(kind, match="k"):
        await twin.memories.search("alice", "dog?", k=k)
    assert server.requests == []


def test_a_page_shows_its_facts_and_not_how_it_was_fetched() -> None:
    shown = repr(script(page(range(1), None)).client().memories.list("alice"))
    assert shown.startswith("FactPage(slice=") and "id='f0'" in shown
    assert "function" not in shown and "Transport" not in shown


def test_a_search_gives_hits_with_scores() -> None:
    server = script(
        answer(json={"data": [{"id": "f1", "text": "x", "score": 0.5, "timestamp": "2023-05-08T13:56:00Z"}]})
    )
    found = server.client().memories.search("alice", "dog?", k=3, min_score=0.1)
    assert server.body == {"user_id": "alice", "query": "dog?", "k": 3, "min_score": 0.1}
    assert [(hit.id, hit.text, hit.score, hit.timestamp) for hit in found] == [("f1", "x", 0.5, SAID)]
    assert (len(found), found[0].id) == (1, "f1")


def test_iterating_a_page_goes_on_over_all_pages() -> None:
    server = script(page(range(2), "c1"), page(range(2, 4), "c2"), page(range(4, 5), None))
    first = server.client().memories.list("alice", limit=2)
    assert [fact.id for fact in first.data] == ["f0", "f1"]
    assert [fact.id for fact in first] == ["f0", "f1", "f2", "f3", "f4"]
    assert [dict(request.url.params) for request in server.requests] == [
        {"user_id": "alice", "limit": "2"},
        {"user_id": "alice", "limit": "2", "cursor": "c1"},
        {"user_id": "alice", "limit": "2", "cursor": "c2"},
    ]


async def test_an_async_page_goes_on_over_all_pages() -> None:
    server = script(page(range(2), "c1"), page(range(2, 3), None))
    first = await server.async_client().memories.list("alice")
    assert [fact.id async for fact in first] == ["f0", "f1", "f2"]


def test_pages_can_be_turned_by_hand_up_to_the_last() -> None:
    first = script(page(range(2), "c1"), page(range(2, 3), None)).client().memories.list("alice")
    last = first.get_next_page()
    assert (first.has_next_page(), last.has_next_page()) == (True, False)
    assert (first.next_cursor, first.has_more, first.request_id) == ("c1", True, "req-1")
    with pytest.raises(ValueError, match="last page"):
        last.get_next_page()


def test_a_page_that_points_at_itself_does_not_go_on_for_ever() -> None:
    with pytest.raises(APIResponseValidationError, match="this page"):
        list(script(page(range(1), "c1")).client().memories.list("alice"))


def test_one_fact_is_read_and_deleted_by_id() -> None:
    fact = {"id": "f1", "text": "x", "timestamp": "2023-05-08T13:56:00Z", "metadata": {"a": 1}, "novel": True}
    server = script(answer(json=fact), answer(json={"id": "f1", "deleted": True}))
    client = server.client()
    read = client.memories.get("f1", "alice")
    assert (read.text, read.timestamp, read.metadata, read.model_extra) == ("x", SAID, {"a": 1}, {"novel": True})
    assert client.memories.delete("f1", "alice").deleted is True
    assert [(request.method, str(request.url.raw_path, "ascii")) for request in server.requests] == [
        ("GET", "/v1/memories/f1?user_id=alice"),
        ("DELETE", "/v1/memories/f1?user_id=alice"),
    ]


@pytest.mark.parametrize("method", ["get", "update", "delete", "history"])
def test_a_fact_without_its_user_is_refused_before_it_is_sent(method: str) -> None:
    server = script(answer(json={"id": "f1", "text": "x"}))
    client = server.client()
    for memories in (client.memories, client.memories.with_raw_response):
        with pytest.raises(TypeError, match="user"):
            getattr(memories, method)("f1")
        with pytest.raises(TypeError, match="user must be a str"):
            getattr(memories, method)("f1", None, **({"text": "y"} if method == "update" else {}))
    assert server.requests == []


def test_a_bound_client_fills_the_user_in() -> None:
    server = script(answer(json={"id": "f1", "text": "x"}))
    server.client().for_user("alice").memories.get("f1")
    assert server.requests[0].url.query == b"user_id=alice"


def test_delete_all_names_the_user_and_counts() -> None:
    server = script(answer(json={"deleted": 7}))
    assert server.client().memories.delete_all("al/ice&x").deleted == 7
    assert server.requests[0].url.raw_path == b"/v1/memories?user_id=al%2Fice%26x"


def test_an_empty_answer_to_a_delete_is_a_success() -> None:
    assert script(httpx.Response(204)).client().memories.delete("f1", "alice").deleted is True


@pytest.mark.parametrize("id", ["", " f1"])
def test_an_empty_id_can_never_reach_the_route_that_deletes_all(id: str) -> None:
    server = script(answer())
    with pytest.raises(ValueError, match="id="):
        server.client().memories.delete(id, "alice")
    assert server.requests == []


@pytest.mark.parametrize(
    ("id", "path"),
    [
        ("../users", b"/v1/memories/..%2Fusers"),
        ("..", b"/v1/memories/%2E%2E"),
        (".", b"/v1/memories/%2E"),
        ("a?b#c", b"/v1/memories/a%3Fb%23c"),
        ("ü", b"/v1/memories/%C3%BC"),
    ],
)
def test_an_id_cannot_climb_out_of_its_place_in_the_path(id: str, path: bytes) -> None:
    server = script(answer(json={"id": "x", "text": "x"}))
    server.client().memories.get(id, "alice")
    assert server.requests[0].url.raw_path == path + b"?user_id=alice"


def test_a_fact_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        script(failure(404)).client().memories.get("f9", "alice")


def test_a_raw_response_shows_headers_and_parses_later() -> None:
    raw = script(answer(201, ADDED, x_extra="yes")).client().memories.with_raw_response.add("alice", facts=["x"])
    assert (raw.status_code, raw.headers["x-extra"], raw.request_id) == (201, "yes", "req-1")
    assert raw.content.startswith(b"{")
    assert raw.parse().ids == ("f1",)


async def test_an_async_raw_response_does_the_same_and_errors_still_raise() -> None:
    client = script(answer(json=ADDED), failure(404)).async_client()
    raw = await client.memories.with_raw_response.add("alice", facts=["x"])
    assert raw.parse().ids == ("f1",)
    with pytest.raises(NotFoundError):
        await client.memories.with_raw_response.get("f9", "alice")


def test_a_footprint_gives_bytes_per_tier() -> None:
    tiers = {"device": 10, "host": 0, "disk": 0, "facts": 5, "index": 2}
    server = script(answer(json={"user_id": "a", "facts": 2, "tokens": 30, "bytes": tiers}))
    footprint = server.client().footprint("al/ice")
    assert (footprint.facts, footprint.tokens, footprint.bytes) == (2, 30, tiers)
    assert server.requests[0].url.raw_path == b"/v1/users/al%2Fice/footprint"
    assert "x-inferscale-shard" in server.headers
