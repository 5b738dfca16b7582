"""A search by vector, and whose fact an id is: what integrations need that bring vectors and ids of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient
from inferscale_server.edge.services import Services
from tests.edge.conftest import guarded
from tests.memory.fakes import FakeEmbedder


@pytest.fixture
async def sdk(services: Services) -> AsyncIterator[AsyncInferScaleClient]:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(guarded(services)))
    async with http, AsyncInferScaleClient(http_client=http, max_retries=0) as client:
        yield client


def vector_of(text: str) -> list[float]:
    return [float(number) for number in FakeEmbedder().embed([text])[0]]


async def test_a_vector_finds_what_its_text_finds(sdk: AsyncInferScaleClient) -> None:
    alice = sdk.for_user("alice").memories
    await alice.add(facts=["Rex is a dog.", "The car is red.", "Tea is hot."])
    by_text = await alice.search("red car", k=3)
    by_vector = await alice.search(vector=[1e9 * number for number in vector_of("red car")], k=3)
    assert [hit.id for hit in by_vector] == [hit.id for hit in by_text]
    assert by_vector[0].score == pytest.approx(by_text[0].score, abs=1e-6)


async def test_a_filter_and_a_bound_hold_for_a_vector_too(sdk: AsyncInferScaleClient) -> None:
    alice = sdk.for_user("alice").memories
    await alice.add(facts=["Rex is a dog."], metadata={"topic": "pets"})
    await alice.add(facts=["Rex is a wolf."])
    found = await alice.search(vector=vector_of("Rex is a wolf."), filter={"topic": "pets"})
    assert [hit.text for hit in found] == ["Rex is a dog."]
    assert len(await alice.search(vector=vector_of("Rex is a wolf."), min_score=0.999)) == 1


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({}, "query"),
        ({"query": "x", "vector": [1.0] * 16}, "vector"),
        ({"vector": [1.0] * 15}, "vector"),
        ({"vector": [0.0] * 16}, "vector"),
        ({"vector": []}, "vector"),
        ({"vector": [1.0] * 15 + ["1"]}, "vector[15]"),
        ({"vector": "1"}, "vector"),
    ],
)
async def test_what_is_no_question_is_refused(client: httpx.AsyncClient, asked: dict[str, object], param: str) -> None:
    refused = await client.post("/v1/memories/search", json={"user_id": "alice", **asked})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_client_takes_either_a_text_or_a_vector() -> None:
    with InferScaleClient() as client, pytest.raises(ValueError, match="exactly one"):
        client.memories.search("alice")


async def test_the_user_of_a_fact_is_told_by_its_id(sdk: AsyncInferScaleClient) -> None:
    await sdk.memories.add("bob", facts=["Tea is hot."])
    [fact_id] = (await sdk.memories.add("alice", facts=["Rex is a dog."])).ids
    assert [user.user_id async for user in await sdk.users.list(fact_id=fact_id)] == ["alice"]
    assert [user.user_id async for user in await sdk.users.list(fact_id="0" * 32)] == []
