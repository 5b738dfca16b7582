"""What the door asks of the engine for the encoder and the extractor, beside chats and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inferscale_server.command import Command
from inferscale_server.engine.door import EngineDoor
from inferscale_server.engine.pace import STEP_TOKENS, WRITES_AT_ONCE, Pace

from .builders import SECRET

PROMPT = tuple(range(1_000, 1_300))


@dataclass
class Client:
    """vLLM's client as the door sees it, with a prefix cache that holds whole blocks by salt. Texts take a moment."""

    block_size: int = 128
    prefix_caching: bool = True
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    through: list[Any] = field(default_factory=list)
    writing: int = 0
    most_writing: int = 0
    fault: Exception | None = None

    @property
    def vllm_config(self) -> Any:
        cache = SimpleNamespace(block_size=self.block_size, enable_prefix_caching=self.prefix_caching)
        return SimpleNamespace(cache_config=cache)

    async def generate(
        self, prompt: Any, sampling: Any, request_id: str, priority: int, lora_request: Any = None
    ) -> AsyncGenerator[Any, None]:
        ids, salt = tuple(prompt["prompt_token_ids"]), prompt["cache_salt"]
        known = [p for p, s in zip(self.prompts, self.salts, strict=True) if s == salt and self.prefix_caching]
        cached = max((len(p) // self.block_size * self.block_size for p in known if ids[: len(p)] == p), default=0)
        self.prompts.append(ids)
        self.salts.append(salt)
        self.through.append(lora_request)
        self.computed.append(len(ids) - cached)
        self.writing += sampling.max_tokens > 1
        self.most_writing = max(self.most_writing, self.writing)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            if self.fault is not None:
                raise self.fault
            yield SimpleNamespace(outputs=[SimpleNamespace(text="{}")])
        finally:
            self.writing -= sampling.max_tokens > 1


class Clock:
    """Time that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        await asyncio.sleep(0)


def door_to(client: Client) -> EngineDoor:
    door, clock = EngineDoor(client, SECRET, lambda: "nobody"), Clock()
    door.pace = Pace(clock, clock.sleep)
    return door


async def written(door: EngineDoor, texts: int = 1) -> list[str]:
    return await asyncio.gather(*[door.write(PROMPT, {"type": "object"}, 256, 0.0) for _ in range(texts)])


@pytest.mark.parametrize(("block", "most"), [(16, STEP_TOKENS), (32, STEP_TOKENS), (128, 128)])
async def test_beside_chats_a_prompt_to_write_behind_is_computed_in_small_steps(block: int, most: int) -> None:
    client = Client(block_size=block)
    door = door_to(client)
    door.pace.chat_arrived()
    assert await written(door) == ["{}"]
    assert max(client.computed) == most and sum(client.computed) == len(PROMPT)
    assert client.prompts[-1] == PROMPT and len(set(client.salts)) == 1


async def test_two_texts_share_no_salt() -> None:
    client = Client()
    door = door_to(client)
    door.pace.chat_arrived()
    await written(door, 2)
    assert len(set(client.salts)) == 2


async def test_without_chats_a_prompt_is_computed_at_once() -> None:
    client = Client()
    await written(door_to(client))
    assert client.prompts == [PROMPT]


async def test_without_a_prefix_cache_a_prompt_is_computed_at_once() -> None:
    client = Client(prefix_caching=False)
    door = door_to(client)
    door.pace.chat_arrived()
    await written(door)
    assert client.prompts == [PROMPT]


async def test_few_texts_are_written_at_once_and_all_of_them_in_the_end() -> None:
    client = Client()
    assert len(await written(door_to(client), 3 * WRITES_AT_ONCE)) == 3 * WRITES_AT_ONCE
    assert client.most_writing == WRITES_AT_ONCE


async def test_beside_chats_one_text_is_written_at_a_time() -> None:
    client = Client()
    door = door_to(client)
    with door.pace.chatting():
        assert len(await written(door, 5)) == 5
    assert client.most_writing == 1


async def test_a_text_that_fails_gives_its_turn_away() -> None:
    client = Client(fault=ValueError("planted"))
    door = door_to(client)
    door.pace.chat_arrived()
    with pytest.raises(ValueError, match="planted"):
        await written(door)
    client.fault = None
    assert await written(door) == ["{}"]


async def test_what_an_adapter_reads_is_encoded_through_it_and_all_else_through_none() -> None:
    client = Client()
    door = door_to(client)
    door.adapters["pirate's"] = pirate = cast(Any, object())
    await door.encode((1, 2, 3), Command(), "pirate's")
    await door.encode((1, 2, 3), Command())
    await written(door)
    assert client.through == [pirate, None, None]
    with pytest.raises(KeyError):
        await door.encode((1, 2, 3), Command(), "lawyer's")


async def test_an_encode_request_may_compute_little_beside_chats_and_all_without() -> None:
    door = door_to(Client())
    assert door.most_tokens() is None
    door.pace.chat_arrived()
    assert door.most_tokens() == STEP_TOKENS
    await door.encode((1, 2, 3), Command())
