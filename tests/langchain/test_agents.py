"""Agents and graphs: the model, the middleware and the store where they are really used."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_inferscale import InferScaleMemoryMiddleware, InferScaleStore
from langchain_inferscale._middleware import turn_of
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel

from .scripted_engine import Refusal, ScriptedEngine, canary

QUESTION: Any = {"messages": [("user", "What is the weather?")]}


@dataclass
class Context:
    """LangGraph's context of these tests."""

    user_id: str


def get_weather(city: str) -> str:
    """The weather in a city."""
    return "sunny"


def of(user: str) -> Any:
    return {"configurable": {"user_id": user}}


def users(engine: ScriptedEngine) -> set[str]:
    return {body["inferscale"]["user_id"] for body in engine.chats}


def remembered(engine: ScriptedEngine) -> list[Any]:
    return [body for body, path in zip(engine.bodies, engine.paths, strict=True) if path == "/v1/memories"]


def middleware(engine: ScriptedEngine, **options: Any) -> InferScaleMemoryMiddleware:
    return InferScaleMemoryMiddleware(http_client=engine.params["http_client"], max_retries=0, **options)


class TakesTurns(AgentMiddleware[Any, Any]):
    """Names another user to each model call."""

    def __init__(self) -> None:
        super().__init__()
        self._users = iter(("alice", "bob"))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        return handler(request.override(model_settings={"user_id": next(self._users)}))


def test_an_agent_calls_its_tool_and_answers_its_user(engine: ScriptedEngine) -> None:
    agent = create_agent(engine.model(), [get_weather])
    messages = agent.invoke(QUESTION, of("alice"))["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[-1].text == f"{canary('alice')} hears you"
    assert users(engine) == {"alice"}


async def test_langgraphs_context_names_the_user_with_and_without_middleware(engine: ScriptedEngine) -> None:
    for extra in ([], [middleware(engine, remember=False)]):
        agent = create_agent(engine.model(), [get_weather], middleware=extra, context_schema=Context)
        for user in ("alice", "bob"):
            said = agent.invoke(QUESTION, context=Context(user))["messages"][-1].text
            assert canary(user) in said
            told = await agent.ainvoke(QUESTION, context=Context(user))
            assert canary(user) in told["messages"][-1].text


def test_configurable_and_context_that_differ_are_refused(engine: ScriptedEngine) -> None:
    agent = create_agent(engine.model(), [], context_schema=Context)
    with pytest.raises(ValueError, match="LangGraph's context"):
        agent.invoke(QUESTION, of("alice"), context=Context("bob"))
    assert engine.bodies == []


@pytest.mark.parametrize("strategy", ["tool", "provider"])
def test_an_agent_answers_in_a_schema(engine: ScriptedEngine, strategy: str) -> None:
    from langchain.agents.structured_output import ProviderStrategy, ToolStrategy

    class Weather(BaseModel):
        """The weather."""

        sky: str

    wanted: Any = ToolStrategy(Weather) if strategy == "tool" else ProviderStrategy(Weather)
    agent = create_agent(engine.model(user_id="alice"), [], response_format=wanted)
    assert isinstance(agent.invoke(QUESTION)["structured_response"], Weather)


def test_a_graph_with_a_checkpointer_keeps_threads_and_users_apart(engine: ScriptedEngine) -> None:
    model = engine.model()

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(checkpointer=InMemorySaver())
    for user in ("alice", "bob", "alice"):
        config = {"configurable": {"user_id": user, "thread_id": f"thread-of-{user}"}}
        said = graph.invoke({"messages": [("user", "hello")]}, config)["messages"]  # type: ignore[call-overload]
        assert {canary(user) in message.text for message in said if message.type == "ai"} == {True}
    assert [len(body["messages"]) for body in engine.chats] == [1, 1, 3]


def test_a_node_streams_through_the_graph(engine: ScriptedEngine) -> None:
    model = engine.model()

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
    pieces = [piece for piece, _ in graph.stream(QUESTION, of("alice"), stream_mode="messages")]  # type: ignore[misc]
    assert len(pieces) > 2 and "".join(piece.text for piece in pieces) == f"{canary('alice')} hears you"


def test_the_turn_is_remembered_for_its_user_without_tool_output(engine: ScriptedEngine) -> None:
    memory = middleware(engine, infer=False)
    agent = create_agent(
        engine.model(), [get_weather], system_prompt="Be kind.", middleware=[memory], checkpointer=InMemorySaver()
    )
    agent.invoke(QUESTION, {"configurable": {"user_id": "alice", "thread_id": "t1"}})
    memory.flush()
    [body] = remembered(engine)
    assert body == {
        "user_id": "alice",
        "timestamp": body["timestamp"],
        "session_id": "t1",
        "infer": False,
        "messages": [
            {"role": "user", "content": "What is the weather?"},
            {"role": "assistant", "content": f"{canary('alice')} hears you"},
        ],
    }


def test_what_is_remembered_has_the_time_of_its_turn(engine: ScriptedEngine) -> None:
    memory = middleware(engine, user_id="alice")
    before_s = time.time()
    create_agent(engine.model(), [], middleware=[memory]).invoke(QUESTION)
    after_s = time.time()
    memory.flush()
    assert before_s <= remembered(engine)[0]["timestamp"] <= after_s


@pytest.mark.parametrize("bound", [False, True])
async def test_the_turn_is_remembered_for_the_user_that_only_the_model_names(
    engine: ScriptedEngine, bound: bool
) -> None:
    memory = middleware(engine)
    model: Any = engine.model().bind(user_id="alice") if bound else engine.model(user_id="alice")
    agent = create_agent(model, [], middleware=[memory])
    agent.invoke(QUESTION)
    await agent.ainvoke(QUESTION)
    memory.flush()
    assert users(engine) == {"alice"}
    assert [body["user_id"] for body in remembered(engine)] == ["alice", "alice"]


def test_a_run_wins_over_both_constructors_and_its_user_is_kept_by_no_checkpoint(engine: ScriptedEngine) -> None:
    memory = middleware(engine, user_id="alice")
    agent = create_agent(engine.model(user_id="alice"), [], middleware=[memory], checkpointer=InMemorySaver())
    for user in ("bob", "carol"):
        agent.invoke(QUESTION, {"configurable": {"user_id": user, "thread_id": "shared"}})
    agent.invoke(QUESTION, {"configurable": {"thread_id": "shared"}})
    memory.flush()
    asked = [body["inferscale"]["user_id"] for body in engine.chats]
    assert asked == [body["user_id"] for body in remembered(engine)] == ["bob", "carol", "alice"]


def test_a_middleware_and_a_model_made_for_two_users_are_refused(engine: ScriptedEngine) -> None:
    memory = middleware(engine, user_id="alice")
    agent = create_agent(engine.model(user_id="bob"), [], middleware=[memory])
    with pytest.raises(ValueError, match="'alice' and 'bob'"):
        agent.invoke(QUESTION)
    memory.flush()
    assert engine.bodies == []


def test_one_run_that_would_use_the_memories_of_two_users_is_refused(engine: ScriptedEngine) -> None:
    memory = middleware(engine)
    agent = create_agent(engine.model(), [get_weather], middleware=[TakesTurns(), memory])
    with pytest.raises(ValueError, match="'alice' and 'bob'"):
        agent.invoke(QUESTION)
    memory.flush()
    assert users(engine) == {"alice"} and remembered(engine) == []


async def test_no_foreign_canary_in_two_users_times_100_interleaved_agents(engine: ScriptedEngine) -> None:
    memory = middleware(engine)
    agent = create_agent(engine.model(), [], middleware=[memory], context_schema=Context)
    asked = ["alice", "bob"] * 100
    answers = await asyncio.gather(*(agent.ainvoke(QUESTION, context=Context(user)) for user in asked))
    assert [canary(user) in answer["messages"][-1].text for user, answer in zip(asked, answers, strict=True)] == [
        True
    ] * len(asked)
    memory.flush()
    turns = [(body["user_id"], body["messages"][-1]["content"]) for body in remembered(engine)]
    assert len(turns) == len(asked) and [said for user, said in turns if canary(user) not in said] == []


async def test_an_async_agents_turn_is_remembered_too(engine: ScriptedEngine) -> None:
    memory = middleware(engine)
    agent = create_agent(engine.model(), [], middleware=[memory], context_schema=Context)
    await agent.ainvoke(QUESTION, context=Context("bob"))
    memory.flush()
    assert [body["user_id"] for body in remembered(engine)] == ["bob"]


def test_with_a_foreign_model_the_turn_is_remembered_and_the_model_left_alone(engine: ScriptedEngine) -> None:
    memory = middleware(engine, user_id="alice")
    agent = create_agent(GenericFakeChatModel(messages=iter(["hi"])), [], middleware=[memory])
    assert agent.invoke(QUESTION)["messages"][-1].text == "hi"
    memory.flush()
    assert [body["messages"][-1]["content"] for body in remembered(engine)] == ["hi"]


def test_a_memory_that_is_away_is_logged_and_the_agent_answers(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    broken = ScriptedEngine(failure=Refusal(503, "full up"))
    memory = middleware(broken, user_id="alice")
    agent = create_agent(engine.model(user_id="alice"), [], middleware=[memory])
    with caplog.at_level(logging.WARNING, "langchain_inferscale"):
        assert canary("alice") in agent.invoke(QUESTION)["messages"][-1].text
        memory.flush()
    assert "full up" in caplog.text and "weather" not in caplog.text


def test_a_turn_of_nobody_is_not_remembered_and_said_so(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    memory = middleware(engine)
    with caplog.at_level(logging.WARNING, "langchain_inferscale"):
        create_agent(GenericFakeChatModel(messages=iter(["hi"])), [], middleware=[memory]).invoke(QUESTION)
        memory.flush()
    assert "whose" in caplog.text and engine.bodies == []


def test_a_turn_is_the_last_question_and_its_last_answer() -> None:
    call = {"type": "tool_call", "id": "1", "name": "f", "args": {}}
    messages = [
        SystemMessage("be kind"),
        HumanMessage("old"),
        AIMessage("old answer"),
        HumanMessage("new"),
        AIMessage("let me look", tool_calls=[call]),  # type: ignore[list-item]
        ToolMessage("secret", tool_call_id="1"),
        AIMessage("new answer"),
    ]
    assert [said["content"] for said in turn_of(messages)] == ["new", "new answer"]
    assert [said["content"] for said in turn_of(messages[:6])] == ["new"]
    assert turn_of(messages[:1]) == [] == turn_of([HumanMessage(" ")])


def test_a_node_uses_the_store_of_its_graph(memory_url: str) -> None:
    def note(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
        assert runtime.store is not None
        runtime.store.put(("memories", "alice"), "k", {"text": state["messages"][-1].text})
        return {}

    store = InferScaleStore(base_url=memory_url)
    graph = StateGraph(MessagesState).add_node(note).add_edge(START, "note").compile(store=store)
    graph.invoke({"messages": [("user", "Rex is a dog.")]})  # type: ignore[arg-type]
    [item] = store.search(("memories", "alice"), query="dog Rex")
    assert item.value == {"text": "Rex is a dog."}
