"""Claims about the memory routes, through the guard, on real stores."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import struct
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from inferscale_server.edge.allowlist import MEMORY_ROUTES, VLLM_ROUTES
from inferscale_server.edge.guard import Guard
from inferscale_server.edge.routes import build_router
from inferscale_server.edge.services import Services
from inferscale_server.limits import MAX_FACT_CHARS, MAX_FACTS_PER_REQUEST, MAX_K, MAX_QUERY_CHARS
from tests.edge.conftest import app_with, client_of

Json = Mapping[str, object]


async def add(client: httpx.AsyncClient, user: str, *facts: object, **more: object) -> httpx.Response:
    return await client.post("/v1/memories", json={"user_id": user, "facts": facts, **more})


async def listed(client: httpx.AsyncClient, user: str) -> list[str]:
    page = await client.get("/v1/memories", params={"user_id": user})
    return [fact["text"] for fact in page.json()["data"]]


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    return response.status_code, error["code"], error["param"]


def names_in(folder: Path) -> set[str]:
    return {child.name for child in folder.iterdir()}


def test_the_guard_lists_every_route_of_the_router_and_no_other() -> None:
    served: dict[str, set[str]] = {}
    for route in build_router(lambda: None).routes:
        assert isinstance(route, APIRoute)
        served.setdefault(route.path, set()).update(route.methods)
    assert served == {path: set(needs) for path, needs in MEMORY_ROUTES.items()}
    assert not MEMORY_ROUTES.keys() & VLLM_ROUTES.keys()


async def test_every_route_is_documented(client: httpx.AsyncClient) -> None:
    documented = (await client.get("/openapi.json")).json()["paths"]
    assert documented.keys() == {path.replace(":path", "") for path in MEMORY_ROUTES}


async def test_an_added_fact_is_listed_read_and_found(client: httpx.AsyncClient) -> None:
    fact = {"text": "Rex is a dog.", "speaker": "Ann", "timestamp": "2023-05-08T13:56:00Z", "metadata": {"a": [1]}}
    added = await add(client, "alice", fact, session_id="s1")
    [result] = added.json()["results"]
    assert (added.status_code, result["status"], result["text"]) == (200, "stored", "Rex is a dog.")
    assert "reason" not in result
    read = (await client.get(f"/v1/memories/{result['id']}", params={"user_id": "alice"})).json()
    created, updated = read.pop("created_at"), read.pop("updated_at")
    assert created.endswith("Z") and datetime.fromisoformat(created) and updated == created
    scope = {"session_id": "s1", "agent_id": None, "run_id": None}
    assert read == {**fact, "id": result["id"], **scope, "expires_at": None}
    found = await client.post("/v1/memories/search", json={"user_id": "alice", "query": "Rex is a dog."})
    [hit] = found.json()["data"]
    assert hit.pop("score") == pytest.approx(1.0, abs=1e-5)
    assert hit == {**read, "created_at": created, "updated_at": updated}


async def test_a_fact_without_a_time_has_a_null_timestamp(client: httpx.AsyncClient) -> None:
    await add(client, "alice", "Rex is a dog.")
    [fact] = (await client.get("/v1/memories", params={"user_id": "alice"})).json()["data"]
    assert (fact["timestamp"], fact["speaker"], fact["session_id"], fact["metadata"]) == (None, None, None, {})


async def test_a_known_fact_is_a_duplicate_with_the_same_id(client: httpx.AsyncClient) -> None:
    results = (await add(client, "alice", "Rex is a dog.", "Rex is a dog.")).json()["results"]
    assert [result["status"] for result in results] == ["stored", "duplicate"]
    assert results[0]["id"] == results[1]["id"]


async def test_messages_are_kept_verbatim_only_when_nothing_is_to_be_inferred(client: httpx.AsyncClient) -> None:
    body = {"user_id": "alice", "messages": [{"role": "user", "content": "My dog is Rex."}]}
    refused = await client.post("/v1/memories", json=body)
    assert error_of(refused) == (400, "extraction_unavailable", "infer")
    assert (await client.post("/v1/memories", json={**body, "infer": False})).status_code == 200
    assert await listed(client, "alice") == ["My dog is Rex."]


@pytest.mark.parametrize("given", [{}, {"facts": ["a"], "messages": [{"role": "user", "content": "b"}]}])
async def test_both_or_neither_of_facts_and_messages_is_refused(client: httpx.AsyncClient, given: Json) -> None:
    response = await client.post("/v1/memories", json={"user_id": "alice", **given})
    assert response.status_code == 400


async def test_pages_cover_all_facts_once_in_order(client: httpx.AsyncClient) -> None:
    texts = [f"fact {i}" for i in range(7)]
    await add(client, "alice", *texts)
    seen: list[str] = []
    query = {"user_id": "alice", "limit": "3"}
    for expected_more in (True, True, False):
        page = (await client.get("/v1/memories", params=query)).json()
        seen += [fact["text"] for fact in page["data"]]
        assert page["has_more"] is expected_more
        query["cursor"] = page["next_cursor"]
    assert (seen, page["next_cursor"]) == (texts, None)


async def test_a_deleted_fact_is_neither_read_nor_found_again(client: httpx.AsyncClient) -> None:
    fact_id = (await add(client, "alice", "Rex is a dog.")).json()["results"][0]["id"]
    path, query = f"/v1/memories/{fact_id}", {"user_id": "alice"}
    assert (await client.delete(path, params=query)).json() == {"id": fact_id, "deleted": True}
    assert error_of(await client.get(path, params=query))[:2] == (404, "not_found")
    assert (await client.delete(path, params=query)).status_code == 404
    assert (await client.post("/v1/memories/search", json={**query, "query": "Rex"})).json() == {"data": []}


async def test_another_users_fact_looks_like_none(client: httpx.AsyncClient) -> None:
    fact_id = (await add(client, "alice", "Rex is a dog.")).json()["results"][0]["id"]
    for call in (client.get, client.delete):
        foreign = await call(f"/v1/memories/{fact_id}", params={"user_id": "bob"})
        nobodys = await call(f"/v1/memories/{'0' * 32}", params={"user_id": "bob"})
        assert error_of(foreign) == error_of(nobodys) == (404, "not_found", "id")
    assert await listed(client, "alice") == ["Rex is a dog."]


async def test_deleting_all_needs_a_user_and_spares_the_others(client: httpx.AsyncClient) -> None:
    await add(client, "alice", "one", "two")
    await add(client, "bob", "three")
    assert error_of(await client.delete("/v1/memories")) == (400, "missing_field", "user_id")
    deleted = await client.delete("/v1/memories", params={"user_id": "alice"})
    assert deleted.json() == {"deleted": 2}
    assert (await listed(client, "alice"), await listed(client, "bob")) == ([], ["three"])


LOOK_ALIKES = [
    ("a/b", "a"),
    ("..", "."),
    ("alice", "\u0430lice"),
    ("\u00c5", "\u0410\u030a"),
    ("a b", "a  b"),
    ("%2e", "."),
    ("A", "a"),
]


@pytest.mark.parametrize("pair", LOOK_ALIKES)
async def test_ids_that_look_alike_are_different_users(client: httpx.AsyncClient, pair: tuple[str, str]) -> None:
    await add(client, pair[0], "Rex is a dog.")
    assert (await listed(client, pair[0]), await listed(client, pair[1])) == (["Rex is a dog."], [])


@pytest.mark.parametrize("user", ["", " ", " a", "a ", "a\0b", "a\nb", "x" * 10_000, 5, None, True, ["a"]])
async def test_an_id_that_is_not_plain_text_is_refused(client: httpx.AsyncClient, user: object) -> None:
    response = await client.post("/v1/memories", json={"user_id": user, "facts": ["a"]})
    code = "invalid_id" if isinstance(user, str) else "invalid_request"
    assert error_of(response) == (400, code, "user_id")
    assert len(response.text) < 500


@pytest.mark.parametrize("user", ["a/b", "../x", "a%2Fb", "a?b#c", "footprint/x", "ä 😀"])
async def test_a_user_id_in_a_path_is_read_as_it_was_written(client: httpx.AsyncClient, user: str) -> None:
    await add(client, user, "one", "two")
    quoted = "".join(f"%{byte:02X}" for byte in user.encode())
    footprint = (await client.get(f"/v1/users/{quoted}/footprint")).json()
    tiers = {"device": 1, "host": 2, "disk": 3, "facts": 4, "index": 5}
    assert footprint == {"user_id": user, "facts": 2, "tokens": 7, "encoded": 0, "queued": 0, "bytes": tiers}


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("k", "5", 400),
        ("k", True, 400),
        ("k", 0, 400),
        ("k", MAX_K + 1, 400),
        ("k", 10**9, 400),
        ("k", 5.5, 400),
        ("min_score", "0.5", 400),
        ("min_score", 1.5, 400),
        ("min_score", False, 400),
        ("query", "", 400),
        ("query", 5, 400),
        ("query", None, 400),
        ("query", "x" * (MAX_QUERY_CHARS + 1), 413),
        ("filter", {}, 400),
    ],
)
async def test_a_bad_search_names_its_field(client: httpx.AsyncClient, field: str, value: object, status: int) -> None:
    response = await client.post("/v1/memories/search", json={"user_id": "alice", "query": "dog", field: value})
    assert (error_of(response)[0], error_of(response)[2]) == (status, field)


@pytest.mark.parametrize(
    ("given", "param", "status"),
    [
        ({"facts": [{"text": 5}]}, "facts[0].text", 400),
        ({"facts": [{"text": "a", "colour": 1}]}, "facts[0].colour", 400),
        ({"facts": ["x" * (MAX_FACT_CHARS + 1)]}, "facts[0]", 413),
        ({"facts": ["a"] * (MAX_FACTS_PER_REQUEST + 1)}, "facts", 413),
        ({"facts": [0] * 1_000_000}, None, 413),
        ({"facts": "a"}, "facts", 400),
        ({"facts": ["a"], "infer": "no"}, "infer", 400),
        ({"facts": ["a"], "metadata": []}, "metadata", 400),
        ({"facts": ["a"], "timestamp": "soon"}, "timestamp", 400),
        ({"facts": ["a"], "session_id": " s"}, "session_id", 400),
        ({"facts": ["a"], "expires_at": 5}, "expires_at", 400),
    ],
)
async def test_a_bad_add_stores_nothing_and_names_its_field(
    client: httpx.AsyncClient, given: Json, param: str | None, status: int
) -> None:
    response = await client.post("/v1/memories", json={"user_id": "alice", **given})
    assert (error_of(response)[0], error_of(response)[2]) == (status, param)
    assert await listed(client, "alice") == []


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "1.0", "+1", "٣", "9" * 5000])
async def test_a_bad_limit_is_refused(client: httpx.AsyncClient, limit: str) -> None:
    response = await client.get("/v1/memories", params={"user_id": "alice", "limit": limit})
    assert error_of(response)[::2] == (400, "limit")


async def test_a_bad_cursor_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/memories", params={"user_id": "alice", "cursor": "nonsense"})
    assert error_of(response)[::2] == (400, "cursor")


@pytest.mark.parametrize("path", ["/v1/memories", "/v1/memories/x", "/ready", "/v1/inferscale/status"])
async def test_an_unknown_query_parameter_is_refused(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path, params={"fliter": "x"})
    assert error_of(response) == (400, "unknown_field", "fliter")


async def test_a_repeated_query_parameter_is_refused(client: httpx.AsyncClient) -> None:
    response = await client.delete("/v1/memories?user_id=alice&user_id=bob")
    assert error_of(response)[::2] == (400, "user_id")


async def test_adds_at_once_with_one_key_are_one_add(client: httpx.AsyncClient) -> None:
    body, headers = {"user_id": "alice", "facts": ["Rex is a dog."]}, {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(*(client.post("/v1/memories", json=body, headers=headers) for _ in range(5)))
    assert [answer.json()["results"][0]["status"] for answer in answers] == ["stored"] * 5


async def test_a_key_with_another_body_is_a_conflict(client: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k1"}
    await client.post("/v1/memories", json={"user_id": "alice", "facts": ["one"]}, headers=headers)
    other = await client.post("/v1/memories", json={"user_id": "alice", "facts": ["two"]}, headers=headers)
    assert error_of(other)[:2] == (409, "idempotency_mismatch")
    bobs = await client.post("/v1/memories", json={"user_id": "bob", "facts": ["two"]}, headers=headers)
    assert bobs.status_code == 200


async def test_a_repeat_after_all_was_deleted_is_told_so_and_stores_nothing(client: httpx.AsyncClient) -> None:
    body, headers = {"user_id": "alice", "facts": ["Rex is a dog."]}, {"Idempotency-Key": "k1"}
    assert (await client.post("/v1/memories", json=body, headers=headers)).status_code == 200
    assert (await client.delete("/v1/memories", params={"user_id": "alice"})).json() == {"deleted": 1}
    for _ in range(2):
        again = await client.post("/v1/memories", json=body, headers=headers)
        assert error_of(again) == (409, "memories_deleted", "Idempotency-Key")
    assert (await client.get("/v1/memories", params={"user_id": "alice"})).json()["data"] == []


async def test_a_repeat_after_a_single_delete_is_told_the_same_and_brings_nothing_back(
    client: httpx.AsyncClient,
) -> None:
    body, headers = {"user_id": "alice", "facts": ["Rex is a dog."]}, {"Idempotency-Key": "k1"}
    first = (await client.post("/v1/memories", json=body, headers=headers)).json()
    await client.delete(f"/v1/memories/{first['results'][0]['id']}", params={"user_id": "alice"})
    assert (await client.post("/v1/memories", json=body, headers=headers)).json() == first
    assert (await client.get("/v1/memories", params={"user_id": "alice"})).json()["data"] == []


async def test_embeddings_come_as_floats_or_base64_of_the_same_floats(client: httpx.AsyncClient) -> None:
    floats = (await client.post("/v1/embeddings", json={"input": ["a", "b"], "model": "fake-16"})).json()
    coded = (await client.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"})).json()
    assert [one["index"] for one in floats["data"]] == [0, 1]
    vector = struct.unpack("<16f", base64.b64decode(coded["data"][0]["embedding"]))
    assert list(vector) == floats["data"][0]["embedding"]
    assert (coded["object"], coded["model"]) == ("list", "fake-16")


@pytest.mark.parametrize("model", [None, "default", "fake-16", "configured"])
async def test_the_embedder_answers_to_its_names(services: Services, model: str | None) -> None:
    named = dataclasses.replace(services, embedder_options=frozenset({"configured"}))
    async with client_of(app_with(named)) as client:
        answer = await client.post("/v1/embeddings", json={"input": "a", "model": model})
    assert (answer.status_code, answer.json()["model"]) == (200, "fake-16")


async def test_another_embedding_model_is_not_found_as_openai_says_it(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/embeddings", json={"input": "a", "model": "text-embedding-3-small"})
    assert error_of(answer) == (404, "model_not_found", "model")


async def test_a_cursor_of_one_users_list_is_refused_for_anothers(client: httpx.AsyncClient) -> None:
    for user in ("alice", "bob"):
        await client.post("/v1/memories", json={"user_id": user, "facts": ["one", "two", "three"]})
    pages = [
        (await client.get("/v1/memories", params={"user_id": user, "limit": "1"})).json() for user in ("alice", "bob")
    ]
    theirs = {"user_id": "bob", "limit": "1", "cursor": pages[0]["next_cursor"]}
    assert error_of(await client.get("/v1/memories", params=theirs))[::2] == (400, "cursor")
    own = await client.get("/v1/memories", params={**theirs, "cursor": pages[1]["next_cursor"]})
    assert [fact["text"] for fact in own.json()["data"]] == ["two"]


@pytest.mark.parametrize("given", [5, [], [""], [[1, 2]], None, "x" * (MAX_QUERY_CHARS + 1)])
async def test_embeddings_of_anything_but_texts_are_refused(client: httpx.AsyncClient, given: object) -> None:
    response = await client.post("/v1/embeddings", json={"input": given})
    assert response.status_code in (400, 413)
    assert str(error_of(response)[2]).startswith("input")


async def test_ready_is_503_with_the_reason_until_there_is_none(services: Services) -> None:
    waiting = dataclasses.replace(services, not_ready=lambda: "the gate is running")
    async with client_of(app_with(waiting)) as client:
        response = await client.get("/ready")
    assert error_of(response)[:2] == (503, "not_ready")
    assert response.json()["error"]["message"] == "the gate is running"


async def test_ready_says_when_memory_is_served_as_text_and_why(services: Services) -> None:
    as_text = dataclasses.replace(services, text_reasons=lambda: ("the start-up gate is red",))
    async with client_of(app_with(as_text)) as client:
        response = await client.get("/ready")
    assert response.json() == {"ready": True, "memory": "text", "reasons": ["the start-up gate is red"]}


async def test_ready_and_status_answer(client: httpx.AsyncClient) -> None:
    assert (await client.get("/ready")).json() == {"ready": True}
    assert (await client.get("/v1/inferscale/status")).json() == {"model": "m"}


async def test_before_the_start_every_route_says_so() -> None:
    async with client_of(app_with(None)) as client:
        answers = [await client.get("/ready"), await client.get("/v1/memories?user_id=a"), await add(client, "a", "b")]
    assert [error_of(answer)[:2] for answer in answers] == [(503, "not_ready")] * 3


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"user_id": "a", "user_id": "b"}', b'{"user_id": "\\ud800"}'])
async def test_without_the_guard_bad_bodies_are_refused_alike(bare_client: httpx.AsyncClient, content: bytes) -> None:
    response = await bare_client.post("/v1/memories", content=content)
    assert error_of(response)[:2] == (400, "invalid_json")


async def test_a_fault_of_the_server_is_a_500_under_handlers_that_blame_the_client(services: Services) -> None:
    canary = "canary-7f3"

    def fail() -> Json:
        raise ValueError(canary)

    app = app_with(dataclasses.replace(services, status=fail))
    app.exception_handler(ValueError)(lambda request, error: None)
    app.add_middleware(Guard)
    async with client_of(app) as client:
        response = await client.get("/v1/inferscale/status", headers={"x-request-id": "r1"})
    assert (error_of(response)[0], response.headers["x-request-id"]) == (500, "r1")
    assert canary not in response.text


async def test_nothing_is_written_outside_the_data_folder(client: httpx.AsyncClient, tmp_path: Path) -> None:
    around = names_in(tmp_path.parent)
    await add(client, "../escape", "one", session_id="../escape")
    assert await listed(client, "../escape") == ["one"]
    assert names_in(tmp_path.parent) == around
    assert {name.partition("-")[0] for name in names_in(tmp_path)} == {"facts.sqlite3"}
