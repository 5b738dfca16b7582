"""The openai package, by address and `user` alone, against the real server with the embedded model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from .live import LiveServer

TURNS, AT_ONCE = 100, 10


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: LiveServer) -> AsyncIterator[AsyncOpenAI]:
    transport = httpx2.ASGITransport(server.app, raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport, timeout=120)
    async with AsyncOpenAI(base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=http) as opened:
        yield opened


def asking(question: str, **more: Any) -> dict[str, Any]:
    return {"model": "", "messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0, **more}


async def model_of(client: AsyncOpenAI) -> str:
    return (await client.models.list()).data[0].id


async def test_memory_comes_by_the_user_alone_whole_and_streamed(server: LiveServer, client: AsyncOpenAI) -> None:
    ids = await server.remember("openai", "Mira's parrot is called Sock.")
    asked = asking("What is the parrot called?", user="openai") | {"model": await model_of(client)}
    whole = await client.chat.completions.create(**asked)
    told = (whole.model_extra or {})["inferscale"]
    assert {fact["id"] for fact in told["facts"]} == ids
    assert told["mode"] == "kv" or told["reason"] == "text_cheaper"  # a single fact may be computed as quickly
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    streamed, at_once = chunks[-1].usage, whole.usage
    assert streamed is not None and at_once is not None
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (at_once.prompt_tokens, at_once.completion_tokens)
    assert (chunks[-1].model_extra or {})["inferscale"]["injected_tokens"] == told["injected_tokens"]


async def test_a_forced_tool_is_called(server: LiveServer, client: AsyncOpenAI) -> None:
    await server.remember("openai", "Mira's parrot is called Sock.")
    words = {"word": {"type": "string", "enum": ["hello", "goodbye"]}}
    schema = {"type": "object", "properties": words, "required": ["word"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "call_parrot", "parameters": schema}}
    asked = asking(
        "Call the parrot.",
        user="openai",
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "call_parrot"}},
    )
    answer = await client.chat.completions.create(**asked | {"model": await model_of(client), "max_tokens": 96})
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "call_parrot"
    assert json.loads(call.function.arguments)["word"] in ("hello", "goodbye")


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"user": " openai"}, openai.BadRequestError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"extra_body": {"cache_salt": "x"}}, openai.BadRequestError),
    ],
)
async def test_errors_are_the_clients_own(client: AsyncOpenAI, more: dict[str, Any], kind: Any) -> None:
    asked = asking("Hello", user="openai") | {"model": await model_of(client)} | more
    with pytest.raises(kind) as refused:
        await client.chat.completions.create(**asked)
    assert refused.value.message and refused.value.type and refused.value.request_id


async def test_two_users_ask_100_times_each_and_never_meet(server: LiveServer, client: AsyncOpenAI) -> None:
    ids = {user: await server.remember(user, f"The code of {user} is {user}-4417.") for user in ("ann", "ben")}
    model = await model_of(client)

    async def ask(user: str, number: int) -> set[str]:
        asked = asking(f"What is the code, {number}?", user=user) | {"model": model, "max_tokens": 2}
        told = ((await client.chat.completions.create(**asked)).model_extra or {})["inferscale"]
        return {fact["id"] for fact in told["facts"]}

    for start in range(0, TURNS, AT_ONCE):
        turns = [(user, start + at) for at in range(AT_ONCE) for user in ids]
        recalled = await asyncio.gather(*(ask(user, number) for user, number in turns))
        assert recalled == [ids[user] for user, _ in turns]
