"""Whose memory a call uses, and that nobody gets another's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableConfig
from langchain_inferscale import InferScaleChatModel, InferScaleRetriever

from .scripted_engine import ScriptedEngine, canary

CALLS_A_USER = 100
USERS = ("alice", "bob")


def of(user: str) -> RunnableConfig:
    return {"configurable": {"user_id": user}}


@pytest.fixture
def cache() -> Iterator[InMemoryCache]:
    """The global cache that LangChain asks about every model."""
    cache = InMemoryCache()
    set_llm_cache(cache)
    yield cache
    set_llm_cache(None)


def asked(engine: ScriptedEngine) -> list[str]:
    return [body["inferscale"]["user_id"] for body in engine.chats]


def test_a_call_that_names_nobody_is_refused_before_anything_is_sent(engine: ScriptedEngine) -> None:
    model = engine.model()
    for call in (
        model.invoke,
        lambda text: next(model.stream(text)),
        lambda text: model.generate([[HumanMessage(text)]]),
    ):
        with pytest.raises(ValueError, match="no user"):
            call("hello")
    assert engine.bodies == []


async def test_an_async_call_that_names_nobody_is_refused_too(engine: ScriptedEngine) -> None:
    with pytest.raises(ValueError, match="no user"):
        await engine.model().ainvoke("hello")
    with pytest.raises(ValueError, match="no user"):
        await anext(engine.model().astream("hello"))
    assert engine.bodies == []


def test_the_constructor_names_the_user_and_a_run_or_a_call_may_name_another(engine: ScriptedEngine) -> None:
    model = engine.model(user_id="alice")
    model.invoke("hello")
    model.invoke("hello", of("bob"))
    model.invoke("hello", of("bob"), user_id="carol")
    model.bind(user_id="dave").invoke("hello", of("bob"))
    model.generate_prompt([ChatPromptTemplate.from_messages(["hello"]).invoke({})])
    assert asked(engine) == ["alice", "bob", "carol", "dave", "alice"]


@pytest.mark.parametrize("empty", ["", " alice", "alice "])
def test_an_empty_user_does_not_fall_back_to_the_constructors(engine: ScriptedEngine, empty: str) -> None:
    model = engine.model(user_id="alice")
    for named in ({"config": of(empty)}, {"user_id": empty}):
        with pytest.raises(ValueError, match="user"):
            model.invoke("hello", **named)  # type: ignore[arg-type]
    assert engine.bodies == []


async def test_every_way_to_call_carries_the_runs_user(engine: ScriptedEngine) -> None:
    model, config = engine.model(user_id="nobody-asked"), of("bob")
    model.invoke("1", config)
    list(model.stream("2", config))
    model.batch(["3"], config)
    list(model.stream_events("4", config, version="v3"))
    await model.ainvoke("5", config)
    [_ async for _ in model.astream("6", config)]
    await model.abatch(["7"], [config])
    [_ async for _ in await model.astream_events("8", config, version="v3")]
    [_ async for _ in model.astream_events("9", config, version="v2")]
    assert asked(engine) == ["bob"] * 9


def test_a_chain_hands_the_runs_user_on(engine: ScriptedEngine) -> None:
    chain = ChatPromptTemplate.from_messages(["{question}"]) | engine.model() | StrOutputParser()
    assert canary("bob") in chain.invoke({"question": "hello"}, of("bob"))
    assert "".join(chain.stream({"question": "hello"}, of("alice"))).startswith(canary("alice"))


def test_a_batch_of_two_users_is_not_mixed_up(engine: ScriptedEngine) -> None:
    answers = engine.model().batch(["hello"] * 20, [of(USERS[turn % 2]) for turn in range(20)])
    assert [canary(USERS[turn % 2]) in answer.text for turn, answer in enumerate(answers)] == [True] * 20


def test_configurable_fields_name_the_user_as_well(engine: ScriptedEngine) -> None:
    model = engine.model(user_id="alice").configurable_fields(user_id=ConfigurableField(id="who"))
    assert model.invoke("hello").text.startswith(canary("alice"))
    assert model.with_config(configurable={"who": "bob"}).invoke("hello").text.startswith(canary("bob"))


def test_session_comes_from_constructor_run_or_call(engine: ScriptedEngine) -> None:
    model = engine.model(user_id="alice", session_id="s0")
    model.invoke("hello")
    model.invoke("hello", {"configurable": {"session_id": "s1"}})
    model.invoke("hello", session_id="s2")
    assert [body["inferscale"]["session_id"] for body in engine.chats] == ["s0", "s1", "s2"]


def test_a_global_cache_is_not_used_unless_asked_for(engine: ScriptedEngine, cache: InMemoryCache) -> None:
    model = engine.model(user_id="alice")
    model.invoke("hello")
    model.invoke("hello")
    assert len(engine.chats) == 2


def whole(model: InferScaleChatModel) -> Any:
    """The answer by way of `generate`, which is told nothing of a run."""
    return model.generate([[HumanMessage("hello")]]).generations[0][0].message  # type: ignore[union-attr]


async def _cached_answers(engine: ScriptedEngine) -> dict[str, list[str]]:
    """The same question in every way that there is to name a user, by user."""
    answers: dict[str, list[str]] = {}
    plain = engine.model(cache=True)
    copied = engine.model(cache=True, user_id="alice")
    copied.invoke("hello")  # Now it knows what it looks like to the cache.
    for user in (*USERS, *USERS):
        own = engine.model(cache=True, user_id=user)
        ways: list[Any] = [
            own.invoke("hello"),
            whole(own),
            plain.invoke("hello", of(user)),
            plain.invoke("hello", user_id=user),
            plain.bind(user_id=user).invoke("hello"),
            await plain.ainvoke("hello", of(user)),
            (ChatPromptTemplate.from_messages(["hello"]) | plain).invoke({}, of(user)),
            copied.model_copy(update={"user_id": user}).invoke("hello"),
            whole(copied.model_copy(update={"user_id": user})),
            copied.configurable_fields(user_id=ConfigurableField(id="u")).invoke(
                "hello", {"configurable": {"u": user}}
            ),
        ]
        answers.setdefault(user, []).extend(answer.text for answer in ways)
    return answers


async def test_two_users_under_a_global_cache_never_get_each_others_answers(
    engine: ScriptedEngine, cache: InMemoryCache
) -> None:
    answers = await _cached_answers(engine)
    assert {user: set(texts) for user, texts in answers.items()} == {
        user: {f"{canary(user)} hears you"} for user in USERS
    }
    assert len(engine.chats) < sum(map(len, answers.values())), "the cache was never hit, so nothing was tested"


def test_one_user_id_of_two_tenants_under_a_global_cache_is_two_users(
    engine: ScriptedEngine, cache: InMemoryCache
) -> None:
    tenants: list[Any] = [
        {"api_key": "key-of-acme"},
        {"api_key": "key-of-globex"},
        {"default_headers": {"X-Tenant": "acme"}},
        {"default_headers": {"X-Tenant": "globex"}},
    ]
    for tenant in (*tenants, *tenants):
        engine.model(cache=True, user_id="alice", **tenant).invoke("hello")
    asked = [(told.get("authorization"), told.get("x-tenant")) for told in engine.headers]
    assert asked == [("Bearer key-of-acme", None), ("Bearer key-of-globex", None), (None, "acme"), (None, "globex")]
    assert "key-of" not in str(cache._cache)


async def test_no_foreign_canary_in_two_users_times_100_interleaved_calls(engine: ScriptedEngine) -> None:
    model = engine.model()

    async def one(turn: int) -> tuple[str, str]:
        user = USERS[turn % 2]
        if turn % 3 == 0:
            pieces = [chunk.text async for chunk in model.astream("hello", of(user))]
            return user, "".join(pieces)
        return user, (await model.ainvoke("hello", of(user))).text

    answers = await asyncio.gather(*(one(turn) for turn in range(2 * CALLS_A_USER)))
    assert [text for user, text in answers if canary(user) not in text] == []


def test_threads_that_share_a_model_do_not_share_users(engine: ScriptedEngine) -> None:
    model = engine.model()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: model.invoke("hello", of(f"user-{n % 5}")).text, range(50)))
    assert answers == [f"{canary(f'user-{n % 5}')} hears you" for n in range(50)]


def test_an_async_model_works_in_one_event_loop_after_another(memory_url: str) -> None:
    retriever = InferScaleRetriever(base_url=memory_url, user_id="alice")
    assert [asyncio.run(retriever.ainvoke("x")) for _ in range(2)] == [[], []]
