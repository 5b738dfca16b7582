"""Both clients against a server that speaks the contract, in process."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient, NotFoundError

from .sample_app import SampleServer


class SyncASGITransport(httpx.BaseTransport):
    """httpx drives ASGI apps from async clients only; this runs the same transport in a loop of its own."""

    def __init__(self, transport: httpx.ASGITransport) -> None:
        self._transport = transport

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._whole(request))

    async def _whole(self, request: httpx.Request) -> httpx.Response:
        response = await self._transport.handle_async_request(request)
        return httpx.Response(response.status_code, headers=response.headers, content=await response.aread())


@pytest.fixture
def server() -> SampleServer:
    return SampleServer()


@pytest.fixture
def client(server: SampleServer) -> InferScaleClient:
    transport = SyncASGITransport(httpx.ASGITransport(app=server.app()))
    return InferScaleClient(http_client=httpx.Client(transport=transport))


@pytest.fixture
def async_client(server: SampleServer) -> AsyncInferScaleClient:
    return AsyncInferScaleClient(http_client=httpx.AsyncClient(transport=httpx.ASGITransport(app=server.app())))


def test_a_fact_that_was_added_answers_a_question(client: InferScaleClient) -> None:
    client.memories.add("alice", facts=["my dog is called Bruno", "the car is red"])
    answer = client.chat("alice", "what is my dog called")
    assert (answer.text, answer.mode, answer.request_id) == ("my dog is called Bruno", "text", "sample-1")
    with client.chat("alice", "what is my dog called", stream=True) as stream:
        assert "".join(stream.text_stream).strip() == "my dog is called Bruno"
        assert stream.get_final_response().facts == answer.facts


def test_another_user_knows_nothing_of_it(client: InferScaleClient) -> None:
    client.memories.add("alice", facts=["my dog is called Bruno"])
    assert client.for_user("bob").chat("what is my dog called").facts == ()
    assert len(client.memories.search("bob", "dog")) == 0


def test_a_deleted_fact_is_not_found_again(client: InferScaleClient) -> None:
    [first, second] = client.memories.add("alice", facts=["one dog", "two dogs"]).ids
    client.memories.delete(first, "alice")
    with pytest.raises(NotFoundError, match="no such fact"):
        client.memories.get(first, "alice")
    assert client.memories.get(second, "alice").text == "two dogs"
    assert client.memories.delete_all("alice").deleted == 1
    assert list(client.memories.list("alice")) == []


def test_the_same_key_stores_a_fact_once(client: InferScaleClient) -> None:
    ids = [client.memories.add("alice", facts=["x"], idempotency_key="k1").ids for _ in range(2)]
    assert ids[0] == ids[1]
    assert client.footprint("alice").facts == 1


async def test_the_async_client_does_the_same(async_client: AsyncInferScaleClient) -> None:
    async with async_client as client:
        assert await client.ready()
        assert (await client.status()).model == "sample"
        alice = client.for_user("alice")
        added = await alice.memories.add(facts=[f"fact number {number}" for number in range(5)])
        assert [fact.id async for fact in await alice.memories.list()] == list(added.ids)
        assert [hit.text for hit in await alice.memories.search("3", k=1)] == ["fact number 3"]
        assert (await alice.chat("number 4")).text == "fact number 4"
        async with await alice.chat("number 4", stream=True) as stream:
            assert (await stream.get_final_response()).text.strip() == "fact number 4"
        assert (await alice.footprint()).facts == 5


async def test_many_async_chats_run_at_once(async_client: AsyncInferScaleClient) -> None:
    await async_client.memories.add("alice", facts=[f"fact number {number}" for number in range(5)])
    answers = await asyncio.gather(*(async_client.chat("alice", f"number {number}") for number in range(5)))
    assert [answer.text for answer in answers] == [f"fact number {number}" for number in range(5)]
