"""Claims about `POST /v1/memories` with messages, over the real routes and store, with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from inferscale_server.edge.services import Services
from inferscale_server.extraction.turn import Sources
from inferscale_server.limits import MAX_FACT_CHARS, MAX_TURNS_PER_REQUEST
from tests.edge.conftest import client_of, guarded
from tests.edge.conftest import services as services
from tests.extraction.script import Script, assistant, extraction, facts, script, user

BODY = {"user_id": "alice", "timestamp": "2023-05-08T13:56:00Z"}


@pytest.fixture
def model() -> Script:
    return script()


@pytest.fixture
async def client(services: Services, model: Script) -> AsyncIterator[httpx.AsyncClient]:
    with_model = replace(services, extraction=extraction(services.memory, model))
    async with client_of(guarded(with_model)) as client:
        yield client


async def add(client: httpx.AsyncClient, *texts: str, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"idempotency-key": key}
    body = {**BODY, "messages": [user(text) for text in texts]}
    return await client.post("/v1/memories", json=body, headers=headers)


async def test_messages_become_facts(client: httpx.AsyncClient, model: Script) -> None:
    model(facts("User hiked yesterday."))
    [result] = (await add(client, "I hiked yesterday")).json()["results"]
    assert (result["status"], result["text"]) == ("stored", "User hiked yesterday (2023-05-07).")
    read = (await client.get(f"/v1/memories/{result['id']}", params={"user_id": "alice"})).json()
    assert (read["timestamp"], read["speaker"]) == ("2023-05-08T13:56:00Z", "user")


async def test_a_failure_says_what_was_lost_and_why(client: httpx.AsyncClient, model: Script) -> None:
    model("no", "no")
    answer = await add(client, "I have a dog")
    assert answer.status_code == 200
    assert answer.json() == {
        "results": [{"id": None, "text": "I have a dog", "status": "failed", "reason": "the answer is no JSON"}]
    }


async def test_a_repeat_is_told_the_same_without_asking_the_model_again(
    client: httpx.AsyncClient, model: Script, services: Services
) -> None:
    model(facts("User has a dog."), "", "")
    first = (await add(client, "I have a dog", "I have a cat", key="k")).json()["results"]
    again = (await add(client, "I have a dog", "I have a cat", key="k")).json()["results"]
    assert again == [first[0], {**first[1], "text": ""}]
    await services.memory.delete_owner(services.memory.owners()[0])
    late = await add(client, "I have a dog", "I have a cat", key="k")
    assert (late.status_code, late.json()["error"]["code"]) == (409, "memories_deleted")


async def test_more_turns_than_a_request_may_have_are_413(client: httpx.AsyncClient) -> None:
    answer = await add(client, *(f"I have {number} dogs" for number in range(MAX_TURNS_PER_REQUEST + 1)))
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "messages")


async def test_nothing_to_remember_is_an_empty_list(client: httpx.AsyncClient) -> None:
    assert (await add(client, "ok", "thanks!")).json() == {"results": []}


@pytest.mark.parametrize("message", [{"role": "user", "content": 5}, {"role": "poet", "content": "a"}, "text"])
async def test_a_bad_message_is_refused_before_any_model_is_asked(client: httpx.AsyncClient, message: object) -> None:
    answer = await client.post("/v1/memories", json={**BODY, "messages": [user("I have a dog"), message]})
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("messages[1]")


@pytest.mark.parametrize("sources", ["user", "both"])
async def test_a_long_answer_does_not_lose_what_the_user_said(
    services: Services, model: Script, sources: Sources
) -> None:
    model(facts("User has a dog."))
    with_model = replace(services, extraction=extraction(services.memory, model, sources=sources))
    body = {**BODY, "messages": [user("I have a dog"), assistant("Dogs need walks. " * 530)]}
    assert len(str(assistant("Dogs need walks. " * 530)["content"])) > 9_000
    async with client_of(guarded(with_model)) as client:
        answer = await client.post("/v1/memories", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["results"][0]["status"] == "stored"


async def test_a_users_own_message_that_is_too_long_is_413(client: httpx.AsyncClient) -> None:
    answer = await add(client, "I have a dog. " * MAX_FACT_CHARS)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "messages[0].content")


async def test_without_inference_a_long_answer_is_not_clipped_in_silence(client: httpx.AsyncClient) -> None:
    said = [user("Where do I live?"), assistant("a" * (MAX_FACT_CHARS + 1))]
    refused = await client.post("/v1/memories", json={**BODY, "infer": False, "messages": said})
    assert (refused.status_code, refused.json()["error"]["param"]) == (413, "messages[1].content")
    kept = await client.post("/v1/memories", json={**BODY, "infer": False, "messages": said[:1]})
    assert [one["status"] for one in kept.json()["results"]] == ["stored"]
