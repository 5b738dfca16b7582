"""LlamaIndex on the real server: what one agent is told, the next one knows, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemory
from pydantic import BaseModel

from tests.llamaindex.loop import async_client, sync_client

from .live import LiveServer

MakeMemory = Callable[..., InferScaleMemory]


class Dog(BaseModel):
    """A dog. Its names are listed, because a free text is one that a small model never ends."""

    name: Literal["Bruno", "Rex"]


def memories(server: LiveServer) -> MakeMemory:
    client, over = sync_client(server.client), async_client(server.client)
    return lambda user, **options: InferScaleMemory.from_client(client, user_id=user, async_client=over, **options)


def llm_of(server: LiveServer) -> InferScaleLLM:
    return InferScaleLLM(async_client=async_client(server.client), temperature=0.0, max_tokens=16)


async def test_what_one_agent_is_told_the_next_one_knows_and_no_stranger(server: LiveServer) -> None:
    memory_of, agent = memories(server), FunctionAgent(llm=llm_of(server))
    first = memory_of("li-alice", infer=False, session_id="s1")
    await agent.run(user_msg="My dog is called Bruno.", memory=first)
    assert await first.aflush() and first.writes.written == 1 and first.writes.failed_facts == 0
    await server.encoded()
    known, strange = [
        (await agent.run(user_msg="What is my dog called?", memory=memory_of(user, remember=False))).raw["inferscale"]
        for user in ("li-alice", "li-bob")
    ]
    assert any("Bruno" in fact["text"] for fact in known["facts"])
    assert (strange["mode"], strange["facts"]) == ("off", [])
    text = memory_of("li-alice", remember=False, mode="text")
    await text.aput(ChatMessage("What is my dog called?"))
    (shown,) = await text.aget()
    assert "My dog is called Bruno." in (shown.content or "")


async def test_the_second_chat_of_an_agent_is_served_from_kv(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.brain.recall, "costs", None)  # `auto` may find text cheaper for two facts
    memory_of, agent = memories(server), FunctionAgent(llm=llm_of(server), system_prompt="Be brief.")
    await server.remember("li-carol", "Carol's cat is called Minka.", "Carol lives in Oslo.")
    for _ in range(2):
        memory = memory_of("li-carol", remember=False)
        output = await agent.run(user_msg="What is my cat called?", memory=memory)
        await server.encoded()
    assert output.raw["inferscale"]["mode"] == "kv" and output.raw["inferscale"]["injected_tokens"] > 0


async def test_a_forced_tool_fills_a_model(server: LiveServer) -> None:
    llm = InferScaleLLM(
        async_client=async_client(server.client),
        temperature=0.0,
        max_tokens=96,
        additional_kwargs={"frequency_penalty": 0.6},  # greedily, so small a model never ends
    )
    found = await llm.astructured_predict(Dog, PromptTemplate("Name the dog Bruno."), llm_kwargs={"user_id": "li-dora"})
    assert isinstance(found, Dog)
