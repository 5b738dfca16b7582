"""Claims about changing facts: updates, their history, expiry, filters, users, keys over a restart."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from inferscale_server.edge.identity import Identity, with_identity
from inferscale_server.edge.services import Services
from inferscale_server.limits import MAX_FACT_CHARS
from tests.edge.conftest import app_with, client_of, guarded, running

Json = Mapping[str, object]
HOUR_S = 3600.0
NEXT_YEAR = "2100-01-01T00:00:00Z"


@dataclass
class Clock:
    """Unix seconds that a test moves on."""

    now: float

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())


@pytest.fixture
async def aging(tmp_path: Path, clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    """The routes over a store whose time the test decides."""
    async with running(tmp_path, clock) as services, client_of(guarded(services)) as client:
        yield client


async def add(client: httpx.AsyncClient, user: str, *facts: object, **more: object) -> list[str]:
    response = await client.post("/v1/memories", json={"user_id": user, "facts": facts, **more})
    assert response.status_code == 200, response.text
    return [result["id"] for result in response.json()["results"]]


async def patch(client: httpx.AsyncClient, fact_id: str, user: str = "alice", **change: object) -> httpx.Response:
    return await client.patch(f"/v1/memories/{fact_id}", params={"user_id": user}, json=change)


async def events(client: httpx.AsyncClient, fact_id: str, user: str = "alice") -> list[tuple[str, object]]:
    response = await client.get(f"/v1/memories/{fact_id}/history", params={"user_id": user})
    assert response.json()["id"] == fact_id, response.text
    return [(event["event"], event["text"]) for event in response.json()["data"]]


async def found(client: httpx.AsyncClient, query: str, **more: object) -> list[str]:
    response = await client.post("/v1/memories/search", json={"user_id": "alice", "query": query, **more})
    return [hit["text"] for hit in response.json()["data"]]


async def listed(client: httpx.AsyncClient, **more: str) -> list[str]:
    response = await client.get("/v1/memories", params={"user_id": "alice", **more})
    return [fact["text"] for fact in response.json()["data"]]


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def test_a_changed_text_is_found_and_the_old_one_is_not(client: httpx.AsyncClient) -> None:
    [fact_id] = await add(client, "alice", "Rex is a dog.", metadata={"a": 1, "b": 2})
    before = (await client.get(f"/v1/memories/{fact_id}", params={"user_id": "alice"})).json()
    changed = (await patch(client, fact_id, text=" Tom is a cat. ")).json()
    assert changed["text"] == "Tom is a cat."
    assert changed["updated_at"] > before["updated_at"]
    kept = {"text", "updated_at"}
    assert {k: v for k, v in changed.items() if k not in kept} == {k: v for k, v in before.items() if k not in kept}
    assert await found(client, "Tom is a cat.", min_score=0.99) == ["Tom is a cat."]
    assert await found(client, "Rex is a dog.", min_score=0.99) == []


async def test_an_update_keeps_the_metadata_that_it_does_not_name(client: httpx.AsyncClient) -> None:
    [fact_id] = await add(client, "alice", "Rex is a dog.", metadata={"a": 1, "b": 2, "c": 3})
    changed = (await patch(client, fact_id, metadata={"b": 9, "c": None})).json()
    assert changed["metadata"] == {"a": 1, "b": 9}


async def test_null_removes_a_time_and_the_expiry(client: httpx.AsyncClient) -> None:
    [fact_id] = await add(client, "alice", "Rex is a dog.", timestamp=5, expires_at=NEXT_YEAR)
    changed = (await patch(client, fact_id, timestamp=None, expires_at=None)).json()
    assert (changed["timestamp"], changed["expires_at"]) == (None, None)


@pytest.mark.parametrize(
    ("change", "param", "status"),
    [
        ({}, None, 400),
        ({"text": ""}, "text", 400),
        ({"text": None}, "text", 400),
        ({"text": 5}, "text", 400),
        ({"text": "x" * (MAX_FACT_CHARS + 1)}, "text", 413),
        ({"metadata": None}, "metadata", 400),
        ({"metadata": []}, "metadata", 400),
        ({"metadata": {"x": "y" * 20_000}}, "metadata", 413),
        ({"timestamp": "soon"}, "timestamp", 400),
        ({"expires_at": 5}, "expires_at", 400),
        ({"id": "x"}, "id", 400),
        ({"created_at": 5}, "created_at", 400),
    ],
)
async def test_a_bad_change_names_its_field_and_changes_nothing(
    client: httpx.AsyncClient, change: Mapping[str, object], param: str | None, status: int
) -> None:
    [fact_id] = await add(client, "alice", "Rex is a dog.", metadata={"a": 1})
    path, params = f"/v1/memories/{fact_id}", {"user_id": "alice"}
    before = (await client.get(path, params=params)).json()
    response = await client.patch(path, params=params, json=change)
    assert (error_of(response)[0], error_of(response)[2]) == (status, param)
    assert (await client.get(path, params=params)).json() == before


async def test_another_users_fact_cannot_be_changed_and_has_no_history(client: httpx.AsyncClient) -> None:
    [fact_id] = await add(client, "alice", "Rex is a dog.")
    foreign = await patch(client, fact_id, "bob", text="Mine now.")
    nobodys = await patch(client, "0" * 32, "bob", text="Mine now.")
    assert error_of(foreign) == error_of(nobodys) == (404, "not_found", "id")
    for fact in (fact_id, "0" * 32):
        history = await client.get(f"/v1/memories/{fact}/history", params={"user_id": "bob"})
        assert error_of(history) == (404, "not_found", "id")
    assert await listed(client) == ["Rex is a dog."]


async def test_a_caller_may_only_name_the_users_of_its_key(services: Services) -> None:
    [fact_id] = await add(client_of(app_with(services)), "alice", "Rex is a dog.")
    bobs = Identity("local", "admin", frozenset({"bob"}))
    app = app_with(services)

    async def as_bob(scope, receive, send):  # type: ignore[no-untyped-def]
        await app(with_identity(scope, bobs), receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(as_bob), base_url="http://testserver") as client:
        params = {"user_id": "alice"}
        path = f"/v1/memories/{fact_id}"
        by_id = [
            await client.get(path, params=params),
            await client.get(path + "/history", params=params),
            await client.delete(path, params=params),
            await client.patch(path, params=params, json={"text": "x"}),
        ]
        of_user = [
            await client.get("/v1/memories", params=params),
            await client.get("/v1/memories/export", params=params),
            await client.delete("/v1/memories", params=params),
            await client.get("/v1/users/alice/footprint"),
            await client.post("/v1/memories", json={"user_id": "alice", "facts": ["x"]}),
            await client.get("/v1/users"),
        ]
    assert [answer.status_code for answer in by_id] == [404] * 4
    assert [answer.status_code for answer in of_user] == [403] * 6


async def test_the_history_tells_what_the_fact_said_until_it_is_deleted(client: httpx.AsyncClient) -> None:
    [fact_id] = await add(client, "alice", "Rex is a dog.")
    await patch(client, fact_id, text="Rex is a wolf.")
    assert await events(client, fact_id) == [("added", "Rex is a dog."), ("updated", "Rex is a wolf.")]
    await client.delete(f"/v1/memories/{fact_id}", params={"user_id": "alice"})
    assert await events(client, fact_id) == [("added", None), ("updated", None), ("deleted", None)]


async def test_an_expired_fact_is_gone_at_once_and_its_history_says_why(aging: httpx.AsyncClient, clock: Clock) -> None:
    facts = ("Rex is a dog.", {"text": "Tom is a cat.", "expires_at": clock.now + 3 * HOUR_S})
    [rex, tom] = await add(aging, "alice", *facts, expires_at=clock.now + HOUR_S)
    assert await listed(aging) == ["Rex is a dog.", "Tom is a cat."]
    clock.now += 2 * HOUR_S
    params = {"user_id": "alice"}
    assert await listed(aging) == await found(aging, "Rex is a dog.") == ["Tom is a cat."]
    for call in (aging.get(f"/v1/memories/{rex}", params=params), patch(aging, rex, text="x")):
        assert error_of(await call)[:2] == (404, "not_found")
    assert (await aging.get("/v1/memories/export", params=params)).text.count("\n") == 1
    await patch(aging, tom, expires_at=None)
    clock.now += 9 * HOUR_S
    assert await listed(aging) == ["Tom is a cat."]
    assert (await events(aging, rex))[-1] == ("expired", None)


@pytest.mark.parametrize("moment", ["2020-01-01", "2020-01-01T00:00:00+02:00", 1_000_000_000, 0])
async def test_an_expiry_that_has_passed_is_refused_when_it_is_written(
    client: httpx.AsyncClient, moment: object
) -> None:
    body = {"user_id": "alice", "facts": [{"text": "a", "expires_at": moment}]}
    response = await client.post("/v1/memories", json=body)
    assert error_of(response) == (400, "invalid_request", "facts[0].expires_at")
    assert await listed(client) == []


async def test_a_filter_narrows_pages_and_searches(client: httpx.AsyncClient) -> None:
    facts = [{"text": f"number {n}", "metadata": {"n": n, "kind": {"odd": n % 2 == 1}}} for n in range(6)]
    await add(client, "alice", *facts)
    between = {"n": {"gte": 2, "lte": 4}}
    odd = {"and": [between, {"kind.odd": True}]}
    assert await listed(client, filter=json.dumps(between)) == ["number 2", "number 3", "number 4"]
    assert await found(client, "number", filter=odd) == ["number 3"]
    assert await found(client, "number", filter={"not": {"n": {"lt": 5}}}) == ["number 5"]


async def test_filtered_pages_miss_nothing_and_repeat_nothing(client: httpx.AsyncClient) -> None:
    await add(client, "alice", *({"text": f"fact {n}", "metadata": {"even": n % 2 == 0}} for n in range(257)))
    query = {"user_id": "alice", "limit": "10", "filter": '{"even": true}'}
    seen: list[str] = []
    while True:
        page = (await client.get("/v1/memories", params=query)).json()
        seen += [fact["text"] for fact in page["data"]]
        if not page["has_more"]:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == [f"fact {n}" for n in range(0, 257, 2)]


@pytest.mark.parametrize(
    "written",
    ["", "x", "[]", "{}", '{"n": {"above": 3}}', '{"and": []}', '{"n": 1, "n": 2}', '{"n": NaN}', '{"n": []}'],
)
async def test_a_filter_that_means_nothing_is_refused_and_never_ignored(
    client: httpx.AsyncClient, written: str
) -> None:
    response = await client.get("/v1/memories", params={"user_id": "alice", "filter": written})
    assert error_of(response) == (400, "invalid_filter", "filter")
    assert "body" not in response.json()["error"]["message"]


async def test_users_are_listed_with_their_counts_page_by_page(client: httpx.AsyncClient) -> None:
    for number, user in enumerate(["carol", "alice", "b/ob"], 1):
        await add(client, user, *(f"fact {n}" for n in range(number)))
    first = (await client.get("/v1/users", params={"limit": "2"})).json()
    rest = (await client.get("/v1/users", params={"limit": "2", "cursor": first["next_cursor"]})).json()
    assert [(user["user_id"], user["facts"]) for page in (first, rest) for user in page["data"]] == [
        ("alice", 2),
        ("b/ob", 3),
        ("carol", 1),
    ]
    assert (first["has_more"], rest["has_more"], rest["next_cursor"]) == (True, False, None)


async def test_a_repeat_with_the_same_key_is_answered_alike_after_a_restart(tmp_path: Path) -> None:
    body, headers = {"user_id": "alice", "facts": ["Rex is a dog."]}, {"Idempotency-Key": "k1"}
    answers = []
    for _ in range(2):
        async with running(tmp_path) as services, client_of(guarded(services)) as client:
            answers.append((await client.post("/v1/memories", json=body, headers=headers)).json())
            other = await client.post("/v1/memories", json=body | {"facts": ["x"]}, headers=headers)
            assert error_of(other) == (409, "idempotency_mismatch", "Idempotency-Key")
    assert answers[0] == answers[1]
    assert answers[0]["results"][0]["status"] == "stored"
