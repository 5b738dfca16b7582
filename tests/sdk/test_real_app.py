"""The async client through the real routes and the real store, in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from inferscale_sdk import AsyncInferScaleClient, BadRequestError, ConflictError, NotFoundError
from tests.edge.conftest import guarded, running


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncInferScaleClient]:
    async with running(tmp_path) as services:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(guarded(services)))
        async with AsyncInferScaleClient(http_client=http, max_retries=0) as client:
            yield client


async def test_a_fact_lives_through_all_methods(client: AsyncInferScaleClient) -> None:
    alice = client.for_user("alice").memories
    soon = datetime.now(UTC) + timedelta(days=1)
    [fact_id] = (await alice.add(facts=["Rex is a dog."], metadata={"topic": "pets"}, expires_at=soon)).ids
    changed = await alice.update(fact_id, text="Rex is a wolf.", metadata={"sure": True}, expires_at=None)
    assert (changed.text, changed.expires_at) == ("Rex is a wolf.", None)
    assert changed.metadata == {"topic": "pets", "sure": True}
    assert [hit.id for hit in await alice.search("wolf", filter={"topic": "pets"})] == [fact_id]
    assert [fact.id async for fact in await alice.list(filter={"sure": False})] == []
    assert [event.event for event in await alice.history(fact_id)] == ["added", "updated"]
    await alice.delete(fact_id)
    assert [event.text for event in await alice.history(fact_id)] == [None, None, None]
    with pytest.raises(NotFoundError):
        await alice.update(fact_id, text="back")


async def test_257_facts_come_back_as_257_facts(client: AsyncInferScaleClient) -> None:
    await client.memories.add("alice", facts=[f"fact {n}" for n in range(257)])
    texts = [fact.text async for fact in await client.memories.list("alice", limit=20)]
    assert texts == [f"fact {n}" for n in range(257)]


async def test_facts_move_to_another_user_as_they_are(client: AsyncInferScaleClient) -> None:
    await client.memories.add("alice", facts=[{"text": "Rex", "timestamp": 5.5, "metadata": {"a": 1}}, "Tom"])
    exported = [fact async for fact in await client.memories.export("alice")]
    result = await client.memories.import_("bob", exported)
    assert (result.imported, result.failed) == (2, ())
    kept = {"text", "timestamp", "metadata", "created_at", "updated_at"}
    moved = [fact async for fact in await client.memories.export("bob")]
    assert [fact.model_dump(include=kept) for fact in moved] == [fact.model_dump(include=kept) for fact in exported]
    assert [(user.user_id, user.facts) async for user in await client.users.list()] == [("alice", 2), ("bob", 2)]


async def test_a_fact_that_a_search_found_can_be_imported(client: AsyncInferScaleClient) -> None:
    await client.memories.add("alice", facts=["Rex"])
    hits = await client.memories.search("alice", "Rex")
    assert (await client.memories.import_("bob", hits)).imported == 1


async def test_mistakes_have_the_errors_of_their_kind(client: AsyncInferScaleClient) -> None:
    with pytest.raises(BadRequestError, match="operator"):
        await client.memories.search("alice", "x", filter={"a": {"above": 3}})
    await client.memories.add("alice", facts=["one"], idempotency_key="k")
    with pytest.raises(ConflictError):
        await client.memories.add("alice", facts=["two"], idempotency_key="k")
    assert (await client.memories.wait_encoded("alice")).facts == 1
