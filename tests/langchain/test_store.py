"""LangGraph's store over the real memory routes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_inferscale import InferScaleStore, user_label
from langgraph.store.base import GetOp, InvalidNamespaceError, PutOp, SearchItem

from inferscale_sdk import ConflictError, InferScaleClient

ALICE = ("memories", "alice")
WORK = (*ALICE, "work")


@pytest.fixture
def store(memory_url: str) -> InferScaleStore:
    return InferScaleStore(base_url=memory_url)


@pytest.fixture
def client(memory_url: str) -> InferScaleClient:
    return InferScaleClient(base_url=memory_url)


def test_what_is_put_is_got_changed_and_deleted(store: InferScaleStore) -> None:
    store.put(ALICE, "pet", {"text": "Rex is a dog.", "age": 3})
    first = store.get(ALICE, "pet")
    assert first is not None
    assert (first.namespace, first.key, first.value) == (ALICE, "pet", {"text": "Rex is a dog.", "age": 3})
    store.put(ALICE, "pet", {"text": "Rex is a wolf."})
    second = store.get(ALICE, "pet")
    assert second is not None and second.value == {"text": "Rex is a wolf."}
    assert first.created_at == second.created_at and second.updated_at > first.updated_at
    store.delete(ALICE, "pet")
    store.delete(ALICE, "pet")
    assert store.get(ALICE, "pet") is None and store.search(ALICE) == []


async def test_the_async_twins_do_the_same(store: InferScaleStore) -> None:
    await store.aput(ALICE, "pet", {"text": "Rex is a dog."})
    got = await store.aget(ALICE, "pet")
    assert got is not None and got.value == {"text": "Rex is a dog."}
    assert [item.key for item in await store.asearch(ALICE, query="dog Rex")] == ["pet"]
    assert await store.alist_namespaces(prefix=ALICE) == [ALICE]
    await store.adelete(ALICE, "pet")
    await store.adelete(ALICE, "pet")
    assert await store.aget(ALICE, "pet") is None


def test_operations_of_a_batch_run_in_order(store: InferScaleStore) -> None:
    put = PutOp(ALICE, "pet", {"text": "Rex"})
    before, _, after, _, gone = store.batch(
        [GetOp(ALICE, "pet"), put, GetOp(ALICE, "pet"), put._replace(value=None), GetOp(ALICE, "pet")]
    )
    assert before is None and after is not None and gone is None


def test_the_model_is_told_what_was_put(store: InferScaleStore, client: InferScaleClient) -> None:
    store.put(ALICE, "pet", {"text": "Rex is a dog."})
    [hit] = client.memories.search("alice", "dog Rex")
    assert hit.text == "Rex is a dog."


def test_facts_of_others_stand_under_the_user_and_can_be_taken_over(
    store: InferScaleStore, client: InferScaleClient
) -> None:
    [fact_id] = client.memories.add("alice", facts=["Rex is a dog."], metadata={"topic": "pets"}).ids
    [found] = store.search(ALICE, query="dog Rex")
    assert (found.key, found.value) == (fact_id, {"text": "Rex is a dog.", "topic": "pets"})
    got = store.get(ALICE, fact_id)
    assert got is not None and got.dict() == {key: found.dict()[key] for key in got.dict()}
    assert store.search(WORK) == [] and store.get(WORK, fact_id) is None
    store.put(ALICE, fact_id, {"text": "Rex is a wolf."})
    assert [fact.text for fact in client.memories.list("alice")] == ["Rex is a wolf."]
    store.put(ALICE, "mine", {"text": "Rex is a wolf!"})
    store.delete(ALICE, fact_id)
    assert [fact.text for fact in client.memories.list("alice")] == ["Rex is a wolf!"]


def test_a_put_that_repeats_a_fact_of_others_takes_it_over(store: InferScaleStore, client: InferScaleClient) -> None:
    client.memories.add("alice", facts=["Rex is a dog."])
    store.put(ALICE, "pet", {"text": "Rex is a dog."})
    assert [item.key for item in store.search(ALICE)] == ["pet"]


def test_two_keys_cannot_say_the_same(store: InferScaleStore) -> None:
    store.put(ALICE, "one", {"text": "Rex is a dog."})
    with pytest.raises(ConflictError, match="two"):
        store.put(ALICE, "two", {"text": "Rex is a dog."})


def test_two_users_see_nothing_of_each_other(store: InferScaleStore) -> None:
    for user in ("ann@example.org", "ann%40example", "bob"):
        store.put(("memories", user_label(user)), "canary", {"text": f"canary of {user}"})
    for user in ("ann@example.org", "ann%40example", "bob"):
        label = user_label(user)
        [item] = store.search(("memories", label))
        assert (item.value, item.namespace) == ({"text": f"canary of {user}"}, ("memories", label))


def foreign(user: str, found: Sequence[SearchItem]) -> list[str]:
    """What was found and is not this user's canary."""
    return [item.value["text"] for item in found if not item.value["text"].startswith(f"canary of {user}:")]


def test_no_foreign_canary_in_two_users_times_100_interleaved_calls(store: InferScaleStore) -> None:
    for turn in range(50):
        for user in ("alice", "bob"):
            store.put(("memories", user), f"k{turn}", {"text": f"canary of {user}: {turn}"})
            found = store.search(("memories", user), query=f"canary {turn}", limit=100)
            assert len(found) == turn + 1 and foreign(user, found) == []


async def test_no_foreign_canary_in_two_users_times_100_interleaved_async_calls(store: InferScaleStore) -> None:
    async def both(user: str, turn: int) -> list[str]:
        await store.aput(("memories", user), f"k{turn}", {"text": f"canary of {user}: {turn}"})
        found = await store.asearch(("memories", user), query=f"canary {turn}", limit=100)
        assert found
        return foreign(user, found)

    calls = (both(user, turn) for turn in range(50) for user in ("alice", "bob"))
    assert [text for texts in await asyncio.gather(*calls) for text in texts] == []
    assert [len(await store.asearch(("memories", user), limit=100)) for user in ("alice", "bob")] == [50, 50]


def test_a_prefix_finds_what_lies_below_it(store: InferScaleStore) -> None:
    store.put(ALICE, "a", {"text": "on top"})
    store.put(WORK, "b", {"text": "at work"})
    store.put((*ALICE, "workshop"), "c", {"text": "in the workshop"})
    assert [item.key for item in store.search(ALICE)] == ["a", "b", "c"]
    assert [item.key for item in store.search(WORK)] == ["b"]
    assert [item.key for item in store.search(WORK, query="the workshop")] == ["b"]


def test_filters_compare_what_values_hold(store: InferScaleStore) -> None:
    for age in range(5):
        store.put(ALICE, f"k{age}", {"text": f"pet {age}", "age": age, "home": {"city": "Oslo" if age else "Rome"}})

    def keys(wanted: dict[str, Any]) -> list[str]:
        return [item.key for item in store.search(ALICE, filter=wanted)]

    assert keys({"age": 2}) == keys({"age": {"$eq": 2}}) == ["k2"]
    assert keys({"age": {"$gt": 1, "$lte": 3}}) == ["k2", "k3"]
    assert keys({"home": {"city": "Rome"}}) == ["k0"]
    assert keys({"home": {"city": {"$ne": "Oslo"}}, "age": {"$lt": 9}}) == ["k0"]
    for bad in ({"age": {"$near": 3}}, {"age": [1]}):
        with pytest.raises(ValueError, match="age"):
            keys(bad)


def test_limit_and_offset_cut_the_same_list(store: InferScaleStore) -> None:
    for number in range(7):
        store.put(ALICE, f"k{number}", {"text": f"number {number}"})
    assert [item.key for item in store.search(ALICE, limit=3, offset=5)] == ["k5", "k6"]
    ranked = [item.key for item in store.search(ALICE, query="number 3", limit=7)]
    assert [item.key for item in store.search(ALICE, query="number 3", limit=2, offset=2)] == ranked[2:4]


def test_the_text_of_a_value_is_a_field_of_it(store: InferScaleStore, client: InferScaleClient) -> None:
    store.put(ALICE, "a", {"kind": "Memory", "content": {"content": "from langmem"}})
    store.put(ALICE, "b", {"title": "Plan", "body": "go west"}, index=["title", "body"])
    store.put(ALICE, "c", {"n": 3})
    assert [fact.text for fact in client.memories.list("alice")] == ["from langmem", "Plan\ngo west", '{"n": 3}']
    with pytest.raises(ValueError, match="index=False"):
        store.put(ALICE, "d", {"text": "x"}, index=False)


def test_a_ttl_makes_a_fact_that_ends(store: InferScaleStore, client: InferScaleClient) -> None:
    store.put(ALICE, "a", {"text": "for an hour"}, ttl=60)
    [fact] = client.memories.list("alice")
    assert fact.expires_at is not None and fact.created_at is not None
    assert 3500 < (fact.expires_at - fact.created_at).total_seconds() < 3700
    store.put(ALICE, "a", {"text": "for good"})
    assert client.memories.get(fact.id, "alice").expires_at is None


def test_namespaces_are_listed_for_one_user(store: InferScaleStore) -> None:
    for space in (ALICE, WORK, (*WORK, "x"), ("memories", "bob")):
        store.put(space, "k", {"text": str(space)})
    assert store.list_namespaces(prefix=ALICE) == [ALICE, WORK, (*WORK, "x")]
    assert store.list_namespaces(prefix=ALICE, max_depth=3) == [ALICE, WORK]
    assert store.list_namespaces(prefix=ALICE, suffix=("x",)) == [(*WORK, "x")]
    assert store.list_namespaces(prefix=(*ALICE, "*"), limit=1, offset=1) == [(*WORK, "x")]
    for prefix in (None, ("memories",), ("memories", "*")):
        with pytest.raises(ValueError, match="user"):
            store.list_namespaces(prefix=prefix)


def test_a_namespace_without_a_user_is_refused(store: InferScaleStore) -> None:
    for namespace in (("memories",), ("notes", "alice"), ()):
        with pytest.raises(ValueError, match="user"):
            store.search(namespace)
    with pytest.raises(InvalidNamespaceError):
        store.put(("memories", "ann@example.org"), "k", {"text": "x"})
    with pytest.raises(InvalidNamespaceError):
        store.batch([GetOp(("memories.alice", "bob"), "k")])


def test_another_root_is_another_place(memory_url: str) -> None:
    store = InferScaleStore(base_url=memory_url, root=())
    store.put(("alice",), "k", {"text": "x"})
    assert InferScaleStore(base_url=memory_url).search(ALICE) == []
    assert [item.key for item in store.search(("alice",))] == ["k"]
