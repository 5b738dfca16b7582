"""The retriever over the real routes: LangChain's own suite, and whose facts are found."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.load import dumps
from langchain_core.runnables import RunnableLambda
from langchain_inferscale import InferScaleRetriever
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError

from inferscale_sdk import InferScaleClient

FACTS = [f"Bruno is dog number {number}." for number in range(5)]


class TestStandard(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def remembered(self, memory_url: str) -> None:
        self._url = memory_url
        InferScaleClient(base_url=memory_url).memories.add("alice", facts=FACTS)

    @property
    def retriever_constructor(self) -> type[InferScaleRetriever]:
        return InferScaleRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"user_id": "alice", "base_url": self._url}

    @property
    def retriever_query_example(self) -> str:
        return "Which dog is Bruno?"


def test_a_document_carries_the_facts_id_score_and_metadata(memory_url: str) -> None:
    client = InferScaleClient(base_url=memory_url)
    fact = {"text": "Rex is a dog.", "speaker": "Ann", "timestamp": 5.5, "metadata": {"topic": "pets"}}
    [fact_id] = client.memories.add("alice", facts=[fact]).ids  # type: ignore[list-item]
    [document] = InferScaleRetriever(user_id="alice", base_url=memory_url).invoke("dog Rex")
    assert (document.id, document.page_content) == (fact_id, "Rex is a dog.")
    assert 0 < document.metadata.pop("score") <= 1.001
    assert document.metadata == {"topic": "pets", "speaker": "Ann", "timestamp": "1970-01-01T00:00:05.500000+00:00"}


def test_filter_and_min_score_leave_facts_out(memory_url: str) -> None:
    client = InferScaleClient(base_url=memory_url)
    client.memories.add("alice", facts=["Rex is a dog."], metadata={"topic": "pets"})
    client.memories.add("alice", facts=["The dog show is on Monday."])
    found = InferScaleRetriever(user_id="alice", base_url=memory_url, filter={"topic": "pets"})
    assert [document.page_content for document in found.invoke("dog")] == ["Rex is a dog."]
    assert found.invoke("cat", min_score=0.999) == []


async def test_a_run_finds_its_own_users_facts_only(memory_url: str) -> None:
    client = InferScaleClient(base_url=memory_url)
    for user in ("alice", "bob"):
        client.memories.add(user, facts=[f"canary-of-{user}"])
    retriever = InferScaleRetriever(base_url=memory_url)
    chain = RunnableLambda(lambda question: question) | retriever
    for user in ("alice", "bob"):
        config: Any = {"configurable": {"user_id": user}}
        found = [*chain.invoke("canary", config), *await retriever.ainvoke("canary", config)]
        assert {document.page_content for document in found} == {f"canary-of-{user}"}


def test_no_foreign_canary_in_two_users_times_100_interleaved_searches(memory_url: str) -> None:
    client = InferScaleClient(base_url=memory_url)
    for user in ("alice", "bob"):
        client.memories.add(user, facts=[f"canary-of-{user}"])
    users = ["alice", "bob"] * 100
    configs: list[Any] = [{"configurable": {"user_id": user}} for user in users]
    found = InferScaleRetriever(base_url=memory_url).batch(["canary"] * len(users), configs)
    assert [[document.page_content for document in documents] for documents in found] == [
        [f"canary-of-{user}"] for user in users
    ]


def test_a_search_that_names_nobody_or_an_unknown_option_is_refused(memory_url: str) -> None:
    with pytest.raises(ValueError, match="no user"):
        InferScaleRetriever(base_url=memory_url).invoke("dog")
    with pytest.raises(ValidationError, match="top_k"):
        InferScaleRetriever(top_k=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="top_k"):
        InferScaleRetriever(base_url=memory_url, user_id="alice").invoke("dog", top_k=3)


def test_its_key_is_not_shown() -> None:
    retriever = InferScaleRetriever(api_key="sk-secret", user_id="alice")  # type: ignore[arg-type]
    assert "sk-secret" not in dumps(retriever) + repr(retriever)
