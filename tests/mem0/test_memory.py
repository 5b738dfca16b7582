"""`mem0.Memory` as it is, with this server as store, model and embedder; and our Memory, which extracts by mem0."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mem0_inferscale
import pytest
from fastapi import FastAPI
from mem0 import AsyncMemory, Memory
from mem0_inferscale import ExtractionFailed, InferScaleMemory, memory_config

from inferscale_sdk import InferScaleClient, PermissionDeniedError
from inferscale_server.edge.auth import Access
from inferscale_server.edge.keys import change_keys, make_key
from inferscale_server.edge.services import Services
from tests.cli.memory_server import memory_server
from tests.openai.chat_app import MODEL, ChatApp

SAID = [{"role": "user", "content": "I have a dog called Rex."}]


def says(*texts: str) -> Callable[[Any, Sequence[str]], str]:
    """A model that extracts these."""
    return lambda body, recalled: json.dumps({"memory": [{"text": text, "attributed_to": "user"} for text in texts]})


@pytest.fixture
def memory(url: str) -> Iterator[Memory]:
    """mem0's own class, configured by one call."""
    with Memory.from_config(memory_config(url, model=MODEL, history_db_path=":memory:")) as opened:
        yield opened


@pytest.fixture
def ours(url: str) -> Iterator[InferScaleMemory]:
    with InferScaleMemory(url, model=MODEL) as opened:
        yield opened


@pytest.fixture
def bound(tmp_path: Path, chats: ChatApp) -> Iterator[InferScaleMemory]:
    """With a key that may write, for Alice alone."""
    new = make_key("acme", "write", ("alice",), None, time.time())
    change_keys(tmp_path / "keys", lambda old: (*old, new.key))

    def locked(services: Services) -> FastAPI:
        app = chats.over(services)
        app.state.access = Access(tmp_path / "keys")
        return app

    with memory_server(tmp_path, locked) as url, InferScaleMemory(url, model=MODEL, api_key=new.secret) as opened:
        yield opened


def texts(answer: dict[str, Any]) -> list[str]:
    return [one["memory"] for one in answer["results"]]


def test_mem0_adds_searches_updates_and_deletes(memory: Memory, chats: ChatApp) -> None:
    chats.model = says("User has a dog called Rex")
    [added] = memory.add(SAID, user_id="alice", metadata={"topic": "pets"})["results"]
    assert (added["memory"], added["event"]) == ("User has a dog called Rex", "ADD")
    [hit] = memory.search("User has a dog called Rex", filters={"user_id": "alice"})["results"]
    assert (hit["id"], hit["metadata"]["topic"], hit["user_id"]) == (added["id"], "pets", "alice")
    assert hit["score"] > 0.9
    memory.update(added["id"], text="User has a wolf called Rex")
    assert memory.get(added["id"])["memory"] == "User has a wolf called Rex"
    assert [row["event"] for row in memory.history(added["id"])] == ["ADD", "UPDATE"]
    memory.delete(added["id"])
    assert memory.get(added["id"]) is None
    with pytest.raises(ValueError, match="not found"):
        memory.delete(added["id"])


def test_a_fact_that_mem0_extracted_answers_a_chat(memory: Memory, chats: ChatApp, sdk: InferScaleClient) -> None:
    chats.model = says("User has a dog called Rex")
    memory.add(SAID, user_id="alice")
    chats.model = ChatApp().model
    assert sdk.chat("alice", "dog").text == "User has a dog called Rex"
    assert sdk.chat("bob", "dog").facts == ()


def test_mem0s_own_calls_of_the_model_have_no_memory(memory: Memory, chats: ChatApp) -> None:
    chats.model = says("User has a dog called Rex")
    memory.add(SAID, user_id="alice")
    [body] = chats.bodies
    assert "user" not in body and "inferscale" not in body


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"year": {"gte": 2022}}, ["Tom is a cat"]),
        ({"OR": [{"year": 2021}, {"year": 2023}]}, ["Rex is a dog", "Tom is a cat"]),
        ({"NOT": [{"year": 2021}]}, ["Tom is a cat"]),
        ({"AND": [{"year": {"gte": 2021}}, {"year": {"lte": 2022}}]}, ["Rex is a dog"]),
    ],
)
def test_mem0s_filters_reach_the_store(memory: Memory, filters: dict[str, Any], found: list[str]) -> None:
    memory.add("Rex is a dog", user_id="alice", metadata={"year": 2021}, infer=False)
    memory.add("Tom is a cat", user_id="alice", metadata={"year": 2023}, infer=False)
    answer = memory.search("is a", filters={"user_id": "alice", **filters}, threshold=0.0)
    assert sorted(texts(answer)) == found


def test_delete_all_deletes_all_of_one_user(memory: Memory) -> None:
    for number in range(30):
        memory.add(f"fact {number}", user_id="alice", infer=False)
    memory.add("Tom is a cat", user_id="bob", infer=False)
    memory.delete_all(user_id="alice")
    assert texts(memory.get_all(filters={"user_id": "alice"})) == []
    assert texts(memory.get_all(filters={"user_id": "bob"})) == ["Tom is a cat"]
    memory.reset()
    assert texts(memory.get_all(filters={"user_id": "bob"})) == []


async def test_the_async_class_works_too(url: str) -> None:
    memory = AsyncMemory.from_config(memory_config(url, model=MODEL, history_db_path=":memory:"))
    await memory.add("Rex is a dog", user_id="alice", infer=False)
    assert texts(await memory.search("dog", filters={"user_id": "alice"}, threshold=0.0)) == ["Rex is a dog"]


def test_two_users_take_100_turns_each_and_never_meet(memory: Memory) -> None:
    for number in range(50):
        for user in ("alice", "bob"):
            memory.add(f"{user} code {number}", user_id=user, infer=False)
            found = texts(memory.search(f"code {number}", filters={"user_id": user}, top_k=100, threshold=0.0))
            assert f"{user} code {number}" in found
            assert all(text.startswith(user) for text in found)


def test_these_are_the_names_that_a_user_imports() -> None:
    assert {*mem0_inferscale.__all__} == {
        "ExtractedFact",
        "ExtractionFailed",
        "InferScaleConfig",
        "InferScaleMemory",
        "InferScaleVectorStore",
        "Mem0Extractor",
        "memory_config",
        "register",
    }
    assert all(hasattr(mem0_inferscale, name) for name in mem0_inferscale.__all__)


def test_registering_twice_is_registering_once() -> None:
    mem0_inferscale.register()
    mem0_inferscale.register()


def test_an_unknown_option_of_the_store_is_refused(url: str) -> None:
    config = memory_config(url, model=MODEL)
    config["vector_store"]["config"]["base_urll"] = url  # type: ignore[index]
    with pytest.raises(ValueError, match="base_urll"):
        Memory.from_config(config)


def test_what_is_known_already_is_told_with_its_own_id(ours: InferScaleMemory, chats: ChatApp) -> None:
    chats.model = says("User has a dog called Rex", "User likes tea")
    first = ours.add(SAID, user_id="alice", metadata={"topic": "pets"}, agent_id="a1")["results"]
    assert [one["event"] for one in first] == ["ADD", "ADD"]
    shown = [message["content"] for message in chats.bodies[-1]["messages"]]
    again = ours.add("I have a dog called Rex!", user_id="alice", agent_id="a1")["results"]
    assert [(one["id"], one["event"]) for one in again] in ([], [(one["id"], "NONE") for one in first])
    assert "User likes tea" in chats.bodies[-1]["messages"][-1]["content"]
    assert "User likes tea" not in shown[-1]
    [hit, _] = ours.search("dog", filters={"user_id": "alice", "agent_id": "a1"}, threshold=0.0)["results"]
    assert (hit["metadata"]["topic"], hit["attributed_to"], hit["agent_id"]) == ("pets", "user", "a1")


def test_history_is_the_servers(ours: InferScaleMemory, url: str, chats: ChatApp) -> None:
    chats.model = says("User has a dog called Rex")
    [added] = ours.add(SAID, user_id="alice")["results"]
    ours.update(added["id"], text="User has a wolf called Rex")
    with InferScaleMemory(url, model=MODEL) as another:
        rows = another.history(added["id"])
    assert [(row["event"], row["old_memory"], row["new_memory"]) for row in rows] == [
        ("ADD", None, "User has a dog called Rex"),
        ("UPDATE", "User has a dog called Rex", "User has a wolf called Rex"),
    ]
    ours.delete(added["id"])
    assert [row["event"] for row in ours.history(added["id"])] == ["ADD", "UPDATE", "DELETE"]
    assert ours.history(str(uuid.uuid4())) == []


def test_a_key_bound_to_its_user_gets_changes_and_deletes_what_add_returned(
    bound: InferScaleMemory, chats: ChatApp
) -> None:
    chats.model = says("User has a dog called Rex")
    [added] = bound.add(SAID, user_id="alice")["results"]
    assert bound.get(added["id"])["memory"] == "User has a dog called Rex"
    bound.update(added["id"], text="User has a wolf called Rex")
    bound.delete(added["id"])
    assert [row["event"] for row in bound.history(added["id"])] == ["ADD", "UPDATE", "DELETE"]
    with pytest.raises(PermissionDeniedError):
        bound.get(str(uuid.uuid4()))


@pytest.mark.parametrize("answer", ['{"memory": []}', '```json\n{"memory": []}\n```', 'Sure! {"memory": []}'])
def test_an_answer_without_facts_stores_nothing(ours: InferScaleMemory, chats: ChatApp, answer: str) -> None:
    chats.model = lambda body, recalled: answer
    assert ours.add("ok", user_id="alice")["results"] == []


@pytest.mark.parametrize(
    "answer", ["", "I see.", '{"memory": "dog"}', '{"facts": []}', '{"memory": [', "[]", '{"memory": [{"fact": "x"}]}']
)
def test_an_answer_that_cannot_be_read_is_not_a_silent_nothing(
    ours: InferScaleMemory, chats: ChatApp, answer: str
) -> None:
    chats.model = lambda body, recalled: answer
    with pytest.raises(ExtractionFailed):
        ours.add(SAID, user_id="alice")
    assert texts(ours.get_all(filters={"user_id": "alice"})) == []


def test_system_text_and_tool_output_are_not_made_facts_again(ours: InferScaleMemory, chats: ChatApp) -> None:
    chats.model = says("User likes tea")
    recalled = [{"role": "system", "content": "User likes tea (memory)"}, {"role": "tool", "content": "User likes tea"}]
    assert ours.add(recalled, user_id="alice")["results"] == []
    assert chats.bodies == []
    ours.add([*recalled, *SAID], user_id="alice")
    assert "(memory)" not in chats.bodies[-1]["messages"][-1]["content"]


def test_raw_messages_are_kept_as_they_are(ours: InferScaleMemory, chats: ChatApp) -> None:
    ours.add([{"role": "system", "content": "User likes tea (memory)"}, *SAID], user_id="alice", infer=False)
    assert texts(ours.get_all(filters={"user_id": "alice"})) == ["I have a dog called Rex."]
    assert chats.bodies == []
