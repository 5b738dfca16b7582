"""Claims about agents and runs: they say what is asked about, not who may ask."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from tests.edge.conftest import client as client
from tests.edge.conftest import services as services

Json = Mapping[str, object]
USER = {"user_id": "alice"}


async def fill(client: httpx.AsyncClient) -> None:
    for scope in ({}, {"agent_id": "coach"}, {"agent_id": "coach", "run_id": "r1"}, {"agent_id": "cook"}):
        text = f"Rex is a dog of {' '.join(scope.values()) or 'nobody'}"
        answer = await client.post("/v1/memories", json={**USER, **scope, "facts": [text, "Tom is a cat"]})
        assert [one["status"] for one in answer.json()["results"]] == ["stored", "stored"]


async def listed(client: httpx.AsyncClient, **query: str) -> list[str]:
    answer = await client.get("/v1/memories", params={**USER, **query})
    return [fact["text"] for fact in answer.json()["data"]]


async def test_the_same_words_in_another_scope_are_another_fact(client: httpx.AsyncClient) -> None:
    await fill(client)
    assert (await listed(client)).count("Tom is a cat") == 4
    [again] = (await client.post("/v1/memories", json={**USER, "agent_id": "cook", "facts": ["Tom is a cat"]})).json()[
        "results"
    ]
    assert again["status"] == "duplicate"


@pytest.mark.parametrize(
    ("scope", "dogs"),
    [
        ({}, {"nobody", "coach", "coach r1", "cook"}),
        ({"agent_id": "coach"}, {"coach", "coach r1"}),
        ({"agent_id": "coach", "run_id": "r1"}, {"coach r1"}),
        ({"run_id": "r1"}, {"coach r1"}),
        ({"agent_id": "nobody"}, set()),
    ],
)
async def test_a_scope_narrows_list_and_search(
    client: httpx.AsyncClient, scope: Mapping[str, str], dogs: set[str]
) -> None:
    await fill(client)
    found = await client.post("/v1/memories/search", json={**USER, **scope, "query": "Rex is a dog", "k": 50})
    expected = {f"Rex is a dog of {dog}" for dog in dogs}
    assert {hit["text"] for hit in found.json()["data"] if "dog" in hit["text"]} == expected
    assert {text for text in await listed(client, **scope) if "dog" in text} == expected


async def test_scope_and_filter_must_both_hold(client: httpx.AsyncClient) -> None:
    body = {**USER, "agent_id": "coach", "facts": [{"text": "one", "metadata": {"n": 1}}, "two"]}
    await client.post("/v1/memories", json=body)
    assert await listed(client, agent_id="coach", filter='{"n": 1}') == ["one"]
    assert await listed(client, agent_id="cook", filter='{"n": 1}') == []
    assert await listed(client, filter='{"agent_id": "coach"}') == ["one", "two"]


async def test_deleting_a_run_leaves_the_rest(client: httpx.AsyncClient) -> None:
    await fill(client)
    gone = await client.delete("/v1/memories", params={**USER, "run_id": "r1"})
    assert gone.json() == {"deleted": 2} and len(await listed(client)) == 6
    assert (await client.delete("/v1/memories", params={**USER, "agent_id": "coach"})).json() == {"deleted": 2}
    assert (await client.delete("/v1/memories", params={**USER, "agent_id": "coach"})).json() == {"deleted": 0}
    assert (await client.delete("/v1/memories", params=USER)).json() == {"deleted": 4}


async def test_a_fact_shows_and_keeps_its_scope_over_export_and_import(client: httpx.AsyncClient) -> None:
    body = {**USER, "agent_id": "coach", "facts": [{"text": "one", "run_id": "r9"}]}
    await client.post("/v1/memories", json=body)
    exported = (await client.get("/v1/memories/export", params=USER)).content
    headers = {"content-type": "application/x-ndjson"}
    await client.post("/v1/memories/import", params={"user_id": "bob"}, content=exported, headers=headers)
    for name in ("alice", "bob"):
        [fact] = (await client.get("/v1/memories", params={"user_id": name})).json()["data"]
        assert (fact["agent_id"], fact["run_id"]) == ("coach", "r9")


@pytest.mark.parametrize("bad", ["", " r1", "r1\n", "x" * 300])
async def test_a_bad_id_is_refused_by_name_everywhere(client: httpx.AsyncClient, bad: str) -> None:
    answers = [
        await client.post("/v1/memories", json={**USER, "run_id": bad, "facts": ["one"]}),
        await client.post("/v1/memories/search", json={**USER, "run_id": bad, "query": "one"}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "run_id")
    listing = await client.get("/v1/memories", params={**USER, "run_id": bad})
    wiping = await client.delete("/v1/memories", params={**USER, "run_id": bad})
    assert listing.status_code == wiping.status_code == 400
