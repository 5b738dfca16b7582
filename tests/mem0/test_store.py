"""The vector store keeps what mem0 expects of one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from mem0_inferscale import InferScaleVectorStore

from inferscale_sdk import InferScaleClient
from tests.memory.fakes import FakeEmbedder


def vector_of(text: str) -> list[float]:
    return [float(number) for number in FakeEmbedder().embed([text])[0]]


def put(store: InferScaleVectorStore, text: str, **payload: Any) -> str:
    name = str(uuid.uuid4())
    store.insert([vector_of(text)], [{"data": text, "user_id": "alice", **payload}], [name])
    return name


def found(store: InferScaleVectorStore, query: str, **filters: Any) -> list[str]:
    hits = store.search(query, vector_of(query or "x"), top_k=10, filters={"user_id": "alice", **filters})
    return [hit.payload["data"] for hit in hits]


def listed(store: InferScaleVectorStore, **filters: Any) -> list[str]:
    [memories] = store.list(filters=filters)
    return [memory.payload["data"] for memory in memories]


@pytest.fixture
def store(sdk: InferScaleClient) -> Iterator[InferScaleVectorStore]:
    yield InferScaleVectorStore("mem0", client=sdk)


def another(sdk: InferScaleClient, collection: str = "mem0") -> InferScaleVectorStore:
    """As another process would open it."""
    return InferScaleVectorStore(collection, client=sdk)


def test_scores_are_0_to_1_and_best_first(store: InferScaleVectorStore) -> None:
    for text in ("Rex is a dog.", "The car is red.", "Tea is hot."):
        put(store, text)
    hits = store.search("Rex is a dog.", vector_of("Rex is a dog."), top_k=3, filters={"user_id": "alice"})
    assert hits[0].payload["data"] == "Rex is a dog."
    assert hits[0].score == pytest.approx(1.0, abs=1e-5)
    scores = [hit.score or 0.0 for hit in hits]
    assert scores == sorted(scores, reverse=True) and all(0 <= score <= 1 for score in scores)


def test_a_payload_comes_back_as_it_was(store: InferScaleVectorStore) -> None:
    payload = {
        "topic": "pets",
        "speaker": "x",
        "not": 1,
        "mem0_x": [1],
        "agent_id": "a1",
        "run_id": "r1",
        "role": "user",
    }
    name = put(store, "Rex is a dog.", **payload, created_at="2024-05-01T10:00:00+00:00")
    memory = store.get(name)
    assert memory is not None and memory.id == name
    assert {**memory.payload, **payload} == memory.payload
    assert (memory.payload["data"], memory.payload["user_id"]) == ("Rex is a dog.", "alice")
    assert memory.payload["created_at"] == "2024-05-01T10:00:00+00:00"
    assert set(memory.payload) == {*payload, "data", "hash", "created_at", "updated_at", "user_id"}


@pytest.mark.parametrize(
    ("filters", "texts"),
    [
        ({"topic": "pets"}, ["Rex", "Tom"]),
        ({"topic": ["pets"]}, ["Rex", "Tom"]),
        ({"year": {"gte": 2022, "lte": 2023}}, ["Tom"]),
        ({"topic": {"ne": "pets"}}, ["car"]),
        ({"topic": "*"}, ["Rex", "Tom", "car"]),
        ({"colour": "*"}, ["car"]),
        ({"$or": [{"year": 2021}, {"colour": "red"}]}, ["Rex", "car"]),
        ({"OR": [{"year": 2021}, {"colour": "red"}]}, ["Rex", "car"]),
        ({"$not": [{"year": 2021}, {"colour": "red"}]}, ["Tom"]),
        ({"AND": [{"topic": "pets"}, {"year": {"gt": 2021}}]}, ["Tom"]),
        ({"speaker": {"contains": "n"}}, ["Rex"]),
        ({"agent_id": "a1"}, ["Tom"]),
    ],
)
def test_filters_mean_what_they_mean_in_mem0(
    store: InferScaleVectorStore, filters: dict[str, Any], texts: list[str]
) -> None:
    put(store, "Rex", topic="pets", year=2021, speaker="Ann")
    put(store, "Tom", topic="pets", year=2023, agent_id="a1")
    put(store, "car", topic="things", colour="red")
    assert sorted(found(store, "x", **filters)) == texts
    assert listed(store, user_id="alice", **filters) == texts


@pytest.mark.parametrize(
    ("filters", "told"),
    [
        ({"user_id": "alice", "topic": {"icontains": "x"}}, "icontains"),
        ({"user_id": {"in": ["alice", "bob"]}}, "one id"),
        ({"user_id": "*"}, "one id"),
        ({"user_id": "alice", "$or": [{"user_id": "bob"}]}, "user_id"),
        ({"user_id": "alice", "data": "x"}, "data"),
        ({"user_id": "alice", "$or": ["x"]}, "list of filters"),
        ({"user_id": "mem0/x"}, "taken"),
    ],
)
def test_a_filter_that_cannot_be_honoured_is_an_error(
    store: InferScaleVectorStore, filters: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        store.search("x", vector_of("x"), filters=filters)


def test_a_vector_of_another_size_is_refused(sdk: InferScaleClient) -> None:
    store = InferScaleVectorStore("mem0", embedding_model_dims=16, client=sdk)
    with pytest.raises(ValueError, match="15 numbers"):
        store.insert([[1.0] * 15], [{"data": "x", "user_id": "alice"}])
    with pytest.raises(ValueError, match="17 numbers"):
        store.search("x", [1.0] * 17, filters={"user_id": "alice"})
    assert listed(store, user_id="alice") == []


def test_without_a_text_a_search_goes_by_its_vector(store: InferScaleVectorStore) -> None:
    put(store, "Rex is a dog.")
    put(store, "The car is red.")
    hits = store.search("", vector_of("The car is red."), top_k=1, filters={"user_id": "alice"})
    assert [hit.payload["data"] for hit in hits] == ["The car is red."]


def test_an_update_replaces_text_and_payload(store: InferScaleVectorStore, sdk: InferScaleClient) -> None:
    name = put(store, "Rex is a dog.", topic="pets", sure=False)
    store.update(name, vector=vector_of("x"), payload={"data": "Rex is a wolf.", "user_id": "alice", "topic": "wild"})
    memory = another(sdk).get(name)
    assert memory is not None
    assert (memory.payload["data"], memory.payload["topic"], "sure" in memory.payload) == (
        "Rex is a wolf.",
        "wild",
        False,
    )
    assert found(store, "Rex is a wolf.")[0] == "Rex is a wolf."
    store.update(name, vector=vector_of("y"))
    assert listed(store, user_id="alice") == ["Rex is a wolf."]
    with pytest.raises(ValueError, match="no memory"):
        store.update(str(uuid.uuid4()), payload={"data": "x"})


def test_a_memory_that_another_process_stored_is_read_and_deleted_by_its_id(
    store: InferScaleVectorStore, sdk: InferScaleClient
) -> None:
    name = put(store, "Rex is a dog.")
    assert another(sdk).get(name) is not None
    another(sdk).delete(name)
    assert store.get(name) is None and another(sdk).get(name) is None
    store.delete(name)
    another(sdk).delete(str(uuid.uuid4()))
    with pytest.raises(ValueError, match="UUID"):
        store.get("17")


def test_the_same_text_twice_is_one_memory_and_both_ids_lead_to_it(store: InferScaleVectorStore) -> None:
    first, second = put(store, "I am allergic to peanuts"), put(store, "I am allergic to peanuts ")
    assert listed(store, user_id="alice") == ["I am allergic to peanuts"]
    memory = store.get(second)
    assert memory is not None and memory.payload == store.get(first).payload  # type: ignore[union-attr]


def test_the_same_text_of_another_run_is_another_memory(store: InferScaleVectorStore) -> None:
    put(store, "Tea is hot.", run_id="r1")
    put(store, "Tea is hot.", run_id="r2")
    again = store.get(put(store, "Tea is hot.", run_id="r2"))
    assert again is not None and again.payload["run_id"] == "r2"
    assert found(store, "Tea is hot.", run_id="r1") == found(store, "Tea is hot.", run_id="r2") == ["Tea is hot."]


def test_257_memories_are_listed_and_the_limit_is_kept(store: InferScaleVectorStore) -> None:
    texts = [f"fact {number}" for number in range(257)]
    store.insert([vector_of(text) for text in texts], [{"data": text, "user_id": "alice"} for text in texts])
    assert listed(store, user_id="alice") == texts
    assert [len(memories) for memories in store.list(filters={"user_id": "alice"}, top_k=20)] == [20]


def test_one_add_may_hold_many_users_and_none_sees_anothers(store: InferScaleVectorStore) -> None:
    users = ["test_user", "test_user1"]
    store.insert([vector_of("x")] * 2, [{"data": f"code of {user}", "user_id": user} for user in users])
    for user in users:
        hits = store.search("code", vector_of("code"), top_k=10, filters={"user_id": user})
        assert [hit.payload["data"] for hit in hits] == [f"code of {user}"]


def test_a_users_memories_are_the_ones_that_chats_recall(store: InferScaleVectorStore, sdk: InferScaleClient) -> None:
    put(store, "Rex is a dog.")
    assert [fact.text for fact in sdk.memories.list("alice")] == ["Rex is a dog."]
    sdk.memories.add("alice", facts=["Tea is hot."])
    assert listed(store, user_id="alice") == ["Rex is a dog.", "Tea is hot."]


def test_another_collection_is_another_memory_and_chats_do_not_see_it(
    store: InferScaleVectorStore, sdk: InferScaleClient
) -> None:
    put(store, "Rex is a dog.")
    entities = another(sdk, "mem0_entities")
    name = put(entities, "Rex")
    assert listed(entities, user_id="alice") == ["Rex"]
    assert [fact.text for fact in sdk.memories.list("alice")] == ["Rex is a dog."]
    assert store.get(name) is None
    store.delete(name)
    assert entities.get(name) is not None
    assert store.list_cols() == ["mem0", "mem0_entities"]
    assert entities.col_info() == {"name": "mem0_entities", "embedding_model_dims": 16, "users": 1, "memories": 1}
    entities.reset()
    assert (listed(entities, user_id="alice"), listed(store, user_id="alice")) == ([], ["Rex is a dog."])


def test_what_belongs_to_an_agent_alone_is_no_users(store: InferScaleVectorStore) -> None:
    put(store, "Answer in French.", user_id=None, agent_id="helper")
    put(store, "Rex is a dog.", agent_id="helper")
    assert listed(store, agent_id="helper") == ["Answer in French."]
    assert listed(store, user_id="alice") == ["Rex is a dog."]


def test_a_reset_leaves_what_mem0_has_not_put_there(store: InferScaleVectorStore, sdk: InferScaleClient) -> None:
    put(store, "Rex is a dog.")
    put(store, "Tom is a cat.", user_id="bob")
    sdk.memories.add("alice", facts=["Tea is hot."])
    store.reset()
    assert [listed(store, user_id=user) for user in ("alice", "bob")] == [["Tea is hot."], []]


def test_an_expired_memory_is_gone_for_chats_too(store: InferScaleVectorStore, sdk: InferScaleClient) -> None:
    name = put(store, "Rex is a dog.", expiration_date="2100-01-01")
    [fact] = sdk.memories.list("alice")
    assert str(fact.expires_at) == "2100-01-02 00:00:00+00:00"
    assert store.get(name).payload["expiration_date"] == "2100-01-01"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="passed"):
        put(store, "Tea was hot.", expiration_date="2001-01-01")


@pytest.mark.parametrize(
    ("vectors", "payloads", "ids", "told"),
    [
        ([[1.0]], [{"user_id": "alice"}], None, "no text"),
        ([[1.0]], [{"data": " ", "user_id": "alice"}], None, "no text"),
        ([[1.0]], [{"data": "x", "user_id": "alice"}], ["7"], "UUID"),
        ([[1.0]], [], None, "1 vectors, 0 payloads"),
        ([[1.0]], [{"data": "x" * 8001, "user_id": "alice"}], None, "8000"),
    ],
)
def test_what_cannot_be_kept_is_an_error(
    store: InferScaleVectorStore, vectors: Any, payloads: Any, ids: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        store.insert(vectors, payloads, ids)
    assert listed(store, user_id="alice") == []


def test_a_name_that_would_open_another_collection_is_refused(sdk: InferScaleClient) -> None:
    with pytest.raises(ValueError, match="slash"):
        another(sdk, "mem0/user")
    with pytest.raises(ValueError, match="cosine"):
        another(sdk).create_col("x", 16, "euclid")
