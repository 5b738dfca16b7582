"""What agents and chat engines really call: one search a turn, one write a turn, the right user, one system message."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent, ReActAgent
from llama_index.core.base.llms.types import TextBlock, ToolCallBlock
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine import CondensePlusContextChatEngine, SimpleChatEngine
from llama_index.core.llms import ChatMessage
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.core.workflow import Context, JsonSerializer
from llama_index.memory.inferscale import InferScaleMemory
from pydantic import BaseModel

from .conftest import MakeLLM, MakeMemory
from .foreign import ForeignLLM
from .scripted import KEY, ScriptedServer, call, say

FACT = "Alice's dog is called Bruno."
REACT_CALL = 'Thought: I add.\nAction: add\nAction Input: {"a": 1, "b": 2}'
REACT_ANSWER = "Thought: I can answer.\nAnswer: It is 3."


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tool_call() -> ChatMessage:
    block = ToolCallBlock(tool_call_id="t", tool_name="add", tool_kwargs={"a": 1, "b": 2})
    return ChatMessage(role="assistant", blocks=[TextBlock(text="I add."), block])


def systems(messages: list[Any]) -> int:
    """How many system messages; of ours or of OpenAI's shape."""
    roles = [message["role"] if isinstance(message, dict) else message.role.value for message in messages]
    return roles.count("system")


class Dog(BaseModel):
    """A dog."""

    name: str


class Shelf(BaseRetriever):
    """A document store with one document."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(node=TextNode(text="Dogs bark."), score=1.0)]


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_function_agent_with_our_llm_chats_per_step_and_writes_once(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory, streaming: bool
) -> None:
    server.replies.extend([call("add", a=1, b=2), say("It is 3.")])
    memory = make_memory(session_id="s1")
    agent = FunctionAgent(tools=[add], llm=make_llm(), system_prompt="Be brief.", streaming=streaming)
    output = await agent.run(user_msg="1 + 2?", memory=memory)
    await memory.aflush()
    assert str(output).strip() == "It is 3."
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions", "/v1/chat/completions", "/v1/memories"]
    assert all(body["inferscale"] == {"user_id": "alice", "session_id": "s1"} for body in server.chats)
    assert [systems(body["messages"]) for body in server.chats] == [1, 1]
    assert [message["role"] for message in server.chats[1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert server.chats[1]["messages"][-1]["content"] == "3"
    assert [said["content"] for said in server.writes[0]["messages"]] == ["1 + 2?", "It is 3."]
    assert output.raw["inferscale"]["mode"] == "kv"


async def test_a_function_agent_with_another_llm_searches_once_and_writes_once(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    server.facts["alice"] = [FACT]
    llm = ForeignLLM(tool_call(), tool_call(), "It is 3.")
    memory = make_memory(mode="text")
    agent = FunctionAgent(tools=[add], llm=llm, system_prompt="Be brief.")
    await agent.run(user_msg="1 + 2?", memory=memory)
    await memory.aflush()
    assert [seen.path for seen in server.seen] == ["/v1/memories/search", "/v1/memories"]
    assert [systems(shown) for shown in llm.shown] == [1, 1, 1]
    assert all(FACT in (shown[1].content or "") for shown in llm.shown)
    assert [said["content"] for said in server.writes[0]["messages"]] == ["1 + 2?", "It is 3."]
    assert FACT not in str(memory.get_all())


async def test_each_turn_of_a_conversation_searches_and_writes_once(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    memory = make_memory(mode="text")
    agent = FunctionAgent(tools=[add], llm=ForeignLLM("Yes."))
    for question in ("One?", "Two?", "Two?"):
        await agent.run(user_msg=question, memory=memory)
    await memory.aflush()
    assert [body["query"] for body in server.searches] == ["One?", "Two?", "Two?"]
    assert [body["messages"][0]["content"] for body in server.writes] == ["One?", "Two?", "Two?"]
    assert len(memory.get_all()) == 6


@pytest.mark.parametrize("prompt", [None, "Be brief."])
async def test_a_react_agent_keeps_the_facts_and_one_system_message(
    server: ScriptedServer, make_memory: MakeMemory, prompt: str | None
) -> None:
    server.facts["alice"] = [FACT]
    llm = ForeignLLM(REACT_CALL, REACT_ANSWER)
    memory = make_memory(mode="text")
    output = await ReActAgent(tools=[add], llm=llm, system_prompt=prompt).run(user_msg="1 + 2?", memory=memory)
    await memory.aflush()
    assert str(output) == "It is 3."
    assert [seen.path for seen in server.seen] == ["/v1/memories/search", "/v1/memories"]
    assert [systems(shown) for shown in llm.shown] == [1, 1]
    assert all(FACT in str(shown) for shown in llm.shown)
    assert server.writes[0]["messages"][1]["content"] == "It is 3."


async def test_a_react_agent_works_with_our_llm(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    server.replies.extend([say(REACT_CALL), say(REACT_ANSWER)])
    memory = make_memory()
    output = await ReActAgent(tools=[add], llm=make_llm()).run(user_msg="1 + 2?", memory=memory)
    await memory.aflush()
    assert str(output) == "It is 3."
    assert [body["inferscale"]["user_id"] for body in server.chats] == ["alice", "alice"]
    assert (len(server.searches), len(server.writes)) == (0, 1)


async def test_a_workflow_that_hands_over_writes_the_turn_once(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    server.replies.extend([call("handoff", to_agent="second", reason="sums"), call("add", a=1, b=2), say("It is 3.")])
    memory = make_memory()
    first = FunctionAgent(name="first", description="Greets.", llm=make_llm(), can_handoff_to=["second"])
    second = FunctionAgent(name="second", description="Adds.", llm=make_llm(), tools=[add])
    output = await AgentWorkflow(agents=[first, second], root_agent="first").run(user_msg="1 + 2?", memory=memory)
    await memory.aflush()
    assert str(output).strip() == "It is 3."
    assert (len(server.chats), len(server.searches), len(server.writes)) == (3, 0, 1)
    assert [said["content"] for said in server.writes[0]["messages"]] == ["1 + 2?", "It is 3."]


async def test_a_workflow_with_another_llm_searches_once(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory(mode="text")
    workflow = AgentWorkflow.from_tools_or_functions([add], llm=ForeignLLM(tool_call(), "It is 3."))
    await workflow.run(user_msg="1 + 2?", memory=memory)
    await memory.aflush()
    assert (len(server.searches), len(server.writes)) == (1, 1)


async def test_an_agents_structured_answer_needs_an_llm_with_a_user(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    """LlamaIndex writes the conversation into one new message for it, without the memory's mark."""
    server.replies.extend([say("Bruno."), call("Dog", name="Bruno"), say("Bruno.")])
    named = FunctionAgent(llm=make_llm(user_id="alice"), output_cls=Dog, system_prompt="Be brief.")
    output = await named.run(user_msg="My dog?", memory=make_memory(remember=False))
    assert output.structured_response == {"name": "Bruno"}
    nameless = FunctionAgent(llm=make_llm(), output_cls=Dog)
    with pytest.warns(UserWarning, match="no user"):
        await nameless.run(user_msg="My dog?", memory=make_memory(remember=False))
    assert [body["inferscale"]["user_id"] for body in server.chats] == ["alice"] * 3


async def test_a_history_given_to_an_agent_is_not_written(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    old = [ChatMessage(role="user", content="Old."), ChatMessage(role="assistant", content="Yes.")]
    agent = FunctionAgent(tools=[add], llm=make_llm())
    await agent.run(user_msg="New?", chat_history=old, memory=memory)
    await memory.aflush()
    assert [body["messages"][0]["content"] for body in server.writes] == ["New?"]
    assert len(server.chats[0]["messages"]) == 3


async def test_an_agents_state_does_not_reach_the_history(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    await FunctionAgent(tools=[add], llm=make_llm(), initial_state={"n": 1}).run(user_msg="Hi", memory=memory)
    await memory.aflush()
    assert "n" in server.chats[0]["messages"][0]["content"] != "Hi"
    assert memory.get_all()[0].content == "Hi" == server.writes[0]["messages"][0]["content"]


async def test_a_context_is_stored_without_the_key_and_goes_on_with_its_history(
    server: ScriptedServer, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = FunctionAgent(tools=[add], llm=make_llm())
    context = Context(agent)
    memory = InferScaleMemory.from_defaults(user_id="alice", api_key=KEY, remember=False)
    await agent.run(user_msg="Hi", memory=memory, ctx=context)
    stored = json.dumps(context.to_dict(serializer=JsonSerializer()))
    assert KEY not in stored and "alice" in stored
    back = Context.from_dict(agent, json.loads(stored), serializer=JsonSerializer())
    await agent.run(user_msg="Again", ctx=back)
    assert [message["content"] for message in server.chats[-1]["messages"]] == ["Hi", "I do not know.", "Again"]
    assert server.chats[-1]["inferscale"]["user_id"] == "alice"


def test_a_simple_chat_engine_searches_and_writes_once_a_turn(server: ScriptedServer, make_memory: MakeMemory) -> None:
    server.facts["alice"] = [FACT]
    llm, memory = ForeignLLM("Bruno."), make_memory(mode="text")
    engine = SimpleChatEngine.from_defaults(llm=llm, memory=memory, system_prompt="Be brief.")
    engine.chat("My dog?")
    assert "".join(engine.stream_chat("His name?").response_gen) == "Bruno."
    memory.flush()
    assert (len(server.searches), len(server.writes)) == (2, 2)
    assert [systems(shown) for shown in llm.shown] == [1, 1]
    assert FACT in (llm.shown[0][-1].content or "")
    engine.reset()
    assert engine.chat_history == [] and server.facts["alice"][0] == FACT


async def test_an_async_chat_engine_with_our_llm_writes_once_a_turn(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    engine = SimpleChatEngine.from_defaults(llm=make_llm(), memory=memory)
    server.replies.append(say("Hello."))
    assert (await engine.achat("Hi")).response == "Hello."
    server.replies.append(say("Fine.\n"))
    stream = await engine.astream_chat("How are you?")
    assert "".join([piece async for piece in stream.async_response_gen()]) == "Fine.\n"
    await memory.aflush()
    assert [[said["content"] for said in body["messages"]] for body in server.writes] == [
        ["Hi", "Hello."],
        ["How are you?", "Fine."],
    ]
    assert [body["inferscale"]["user_id"] for body in server.chats] == ["alice", "alice"]


async def test_a_condensing_engine_searches_and_writes_once_a_turn(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    server.facts["alice"] = [FACT]
    llm, memory = ForeignLLM("Bruno barks."), make_memory(mode="text")
    engine = CondensePlusContextChatEngine.from_defaults(Shelf(), llm=llm, memory=memory, system_prompt="Be brief.")
    engine.chat("What does my dog do?")
    await engine.achat("Why?")
    await memory.aflush()
    assert [body["query"] for body in server.searches] == ["What does my dog do?", "Why?"]
    assert len(server.writes) == 2
    answering = [shown for shown in llm.shown if systems(shown)]
    assert [systems(shown) for shown in answering] == [1, 1] and all(FACT in str(shown) for shown in answering)
    roles = [message.role.value for message in answering[-1]]
    assert roles == ["system", "user", "assistant", "user"]


def test_a_condensing_engine_works_with_our_llm(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    engine = CondensePlusContextChatEngine.from_defaults(Shelf(), llm=make_llm(user_id="alice"), memory=memory)
    server.replies.extend([say("It barks."), say("Why does it bark?"), say("It is a dog.")])
    engine.chat("What does my dog do?")
    assert engine.chat("Why?").response == "It is a dog."
    memory.flush()
    assert (len(server.searches), len(server.writes)) == (0, 2)
    assert {body["inferscale"]["user_id"] for body in server.chats} == {"alice"}


async def test_two_users_with_a_hundred_interleaved_calls_each_see_no_foreign_canary(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    server.facts = {"alice": ["canary-alice"], "bob": ["canary-bob"]}
    ours, foreign = make_llm(), ForeignLLM("Yes.")
    answers: dict[str, list[str]] = {"alice": [], "bob": []}

    async def calls(user: str) -> None:
        options = {"remember": False, "token_limit": 100}
        served, text = make_memory(user, **options), make_memory(user, mode="text", **options)
        one = SimpleChatEngine.from_defaults(llm=ours, memory=served)
        other = SimpleChatEngine.from_defaults(llm=foreign, memory=text)
        for number in range(100):
            answers[user].append((await one.achat(f"{user}, {number}: my code?")).response)
            await asyncio.sleep(0)
            await other.achat(f"{user}, {number}: my code?")
            await asyncio.sleep(0)

    await asyncio.gather(calls("alice"), calls("bob"))
    order = [body["inferscale"]["user_id"] for body in server.chats]
    assert order[:4] == ["alice", "bob"] * 2, "the calls interleave"
    for user, stranger in (("alice", "bob"), ("bob", "alice")):
        assert answers[user] == [f"canary-{user}"] * 100
        shown = [text for messages in foreign.shown if f"{user}, " in (text := str(messages))]
        assert len(shown) == 100 and all(f"canary-{user}" in each for each in shown)
        sent = [str(body["messages"]) for body in server.chats if body["inferscale"]["user_id"] == user]
        assert len(sent) == 100 and not any(stranger in each for each in [*shown, *sent])


async def test_one_agent_serves_two_users_at_once(
    server: ScriptedServer, make_llm: MakeLLM, make_memory: MakeMemory
) -> None:
    server.facts = {"alice": ["canary-alice"], "bob": ["canary-bob"]}
    agent = FunctionAgent(llm=make_llm())
    users = ["alice", "bob"] * 3
    runs = [agent.run(user_msg="My code?", memory=make_memory(user, remember=False)) for user in users]
    assert [str(output) for output in await asyncio.gather(*runs)] == [f"canary-{user}" for user in users]


def test_the_engines_default_memory_argument_needs_a_user(make_llm: MakeLLM) -> None:
    with pytest.raises(TypeError, match="user_id"):
        SimpleChatEngine.from_defaults(llm=make_llm(), memory_cls=InferScaleMemory)


async def test_one_object_serves_several_event_loops() -> None:
    """`asyncio.run` after `asyncio.run` is how scripts call agents; a connection belongs to one loop."""
    from llama_index.llms.inferscale.clients import Clients

    clients = Clients(base_url="http://localhost:1")

    async def same() -> object:
        return clients.in_loop()

    here = clients.in_loop()
    assert clients.in_loop() is here
    assert await asyncio.to_thread(asyncio.run, same()) is not here


def test_our_calls_are_counted_once(make_llm: MakeLLM) -> None:
    from llama_index.core.callbacks import CBEventType, LlamaDebugHandler

    handler = LlamaDebugHandler(print_trace_on_end=False)
    make_llm(user_id="alice", callback_manager=CallbackManager([handler])).complete("Hi")
    assert len(handler.get_event_pairs(CBEventType.LLM)) == 1
