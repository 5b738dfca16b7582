"""What the door asks of the engine for the encoder and the extractor, beside chats and without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

from inferscale_server.command import PARAMS_KEY, Command, Extent, Injection
from inferscale_server.engine import pace
from inferscale_server.engine.door import CURRENT_FLIGHT, EngineDoor, Flight
from inferscale_server.engine.pace import STARVED_TOKENS, STEP_TOKENS, WRITES_AT_ONCE, Pace

from .builders import SECRET

EMPTY: dict[str, Any] = {"num_cached_tokens": 0, "prompt_token_ids": (), "kv_transfer_params": None, "metrics": None}
"""What an output says besides its text."""
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
    sampling: list[Any] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    aborted: int = 0
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
        self.sampling.append(sampling)
        self.priorities.append(priority)
        self.computed.append(len(ids) - cached)
        self.writing += sampling.max_tokens > 1
        self.most_writing = max(self.most_writing, self.writing)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            if self.fault is not None:
                raise self.fault
            yield SimpleNamespace(**EMPTY, outputs=[SimpleNamespace(text="{}", token_ids=(), finish_reason="stop")])
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.writing -= sampling.max_tokens > 1


@dataclass
class Loaded:
    """Two adapters, of which one was read."""

    pirate: LoRARequest = field(default_factory=lambda: LoRARequest("pirate", 1, "/pirate"))
    unread: LoRARequest = field(default_factory=lambda: LoRARequest("unread", 2, "/unread"))

    def through(self, fingerprint: str) -> LoRARequest | None:
        return self.pirate if fingerprint == "pirate's" else None

    def fingerprint_of(self, request: LoRARequest) -> str | None:
        return "pirate's" if request is self.pirate else None


LOADED = Loaded()


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
    door.adapters = LOADED
    await door.encode((1, 2, 3), Command(), "pirate's")
    await door.encode((1, 2, 3), Command())
    await written(door)
    assert client.through == [LOADED.pirate, None, None]
    with pytest.raises(LookupError):
        await door.encode((1, 2, 3), Command(), "lawyer's")
    assert len(client.through) == 3


async def test_what_is_captured_goes_before_chats_that_leave_it_no_time_and_what_is_written_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "PATIENCE_S", 0.0)
    monkeypatch.setattr(pace, "RELIEVED_S", 0.0)  # however quick it is, the steps count as full
    client = Client()
    door = door_to(client)
    await door.encode((1, 2, 3), Command())
    assert [priority > 0 for priority in client.priorities] == [True], "without chats nobody is in its way"
    with door.pace.chatting():
        client.priorities.clear()
        await door.encode((1, 2, 3), Command())  # waits, is aborted, and goes once more
        await door.encode((1, 2, 3), Command())
        await written(door)
    behind, again, before, *writing = client.priorities
    assert behind > 0 > again == before and len(writing) > 1 and set(writing) == {behind}
    assert client.aborted == 2, "and so is a part of a prompt to write behind, which is computed with the rest then"
    assert client.prompts[-1] == PROMPT


class Counting(Client):
    """Counts the tokens of all prompts that are under way."""

    now = most = most_before_last = 0

    async def generate(
        self, prompt: Any, sampling: Any, request_id: str, priority: int, lora_request: Any = None
    ) -> AsyncGenerator[Any, None]:
        tokens = len(prompt["prompt_token_ids"])
        self.now += tokens
        self.most_before_last, self.most = self.most, max(self.most, self.now)
        async for output in super().generate(prompt, sampling, request_id, priority, lora_request):
            yield output
        self.now -= tokens


class Busy(Client):
    """Serves nothing behind chats."""

    async def generate(
        self, prompt: Any, sampling: Any, request_id: str, priority: int, lora_request: Any = None
    ) -> AsyncGenerator[Any, None]:
        if priority > 0 and request_id.startswith("encode"):
            await asyncio.Event().wait()
        async for output in super().generate(prompt, sampling, request_id, priority, lora_request):
            yield output


async def test_a_text_to_write_does_not_keep_encode_requests_from_going_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE_S", 0.01)
    client = Busy()
    door = door_to(client)
    with door.pace.chatting():
        await asyncio.wait_for(asyncio.gather(written(door), door.encode((1, 2, 3), Command())), 10)
    assert min(client.priorities) < 0


async def test_chats_that_come_while_a_request_waits_run_out_its_patience_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "PATIENCE_S", 0.01)
    client = Busy()
    door = door_to(client)
    encoding = asyncio.create_task(door.encode((1, 2, 3), Command()))
    await asyncio.sleep(0.05)
    assert not encoding.done(), "without chats there is no hurry"
    door.pace.chat_arrived()
    await asyncio.wait_for(encoding, 10)
    assert min(client.priorities) < 0


async def test_what_waited_to_go_first_takes_turns_once_chats_leave_time() -> None:
    client = Client()
    door = door_to(client)
    with door.pace.chatting():
        door.pace.starve()
        prompt = tuple(range(STARVED_TOKENS))
        await asyncio.gather(*[door.encode(prompt, Command()) for _ in range(4)])  # the first is quick
    assert [priority > 0 for priority in client.priorities] == [False, True, True, True]
    assert door.pace._clock() >= 3 * pace.WAIT_AT_MOST_S, "each looked for a moment without a chat"


async def test_requests_that_go_first_compute_little_at_a_time_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "RELIEVED_S", 0.0)
    client = Counting()
    door = door_to(client)
    with door.pace.chatting():
        door.pace.starve()
        tokens = STARVED_TOKENS // 3
        await asyncio.gather(*[door.encode(tuple(range(tokens)), Command()) for _ in range(8)])
        await door.encode(tuple(range(2 * STARVED_TOKENS)), Command())  # more than may be: alone
    assert client.most == 2 * STARVED_TOKENS and client.most_before_last == 3 * tokens


@dataclass
class Chat:
    """What the door makes of one chat's request."""

    injects: bool
    salt: str
    prompt_ids: list[int]


async def chatted(planned: str | None, served: LoRARequest | None, injects: bool) -> Chat:
    """A chat that was planned for an adapter's fingerprint, and that vLLM runs through this adapter."""
    client = Client()
    door = door_to(client)
    door.adapters = LOADED
    command = door.params(Command(Injection((1, 2), (Extent(0, 2),)))) if injects else {}
    params = {**command, "prompt_token_ids": [1, 2, 3]}
    token = CURRENT_FLIGHT.set(Flight("the plan's", adapter=planned))
    try:
        stream = door.generate(
            {"prompt_token_ids": [1, 2, 3], "cache_salt": "the plan's"},
            SamplingParams(extra_args={"kv_transfer_params": params}),
            "chat",
            lora_request=served,
            priority=0,
        )
    finally:
        CURRENT_FLIGHT.reset(token)
    _ = [output async for output in stream]
    sent = client.sampling[0].extra_args["kv_transfer_params"]
    return Chat(PARAMS_KEY in sent, client.salts[0], sent["prompt_token_ids"])


@pytest.mark.parametrize("planned", ["", "pirate's", "lawyer's"])
@pytest.mark.parametrize("served", [None, LOADED.pirate, LOADED.unread])
async def test_what_is_planned_for_one_adapter_is_injected_into_no_others_request(
    planned: str, served: LoRARequest | None
) -> None:
    chat = await chatted(planned, served, injects=True)
    alike = (planned, served) in [("", None), ("pirate's", LOADED.pirate)]
    assert (chat.injects, chat.salt == "the plan's", chat.prompt_ids) == (alike, alike, [1, 2, 3])


@pytest.mark.parametrize("served", [None, LOADED.pirate])
async def test_a_chat_that_injects_nothing_keeps_its_salt_through_any_adapter(served: LoRARequest | None) -> None:
    assert await chatted(None, served, injects=False) == Chat(False, "the plan's", [1, 2, 3])


async def test_an_encode_request_may_compute_little_beside_chats_and_all_without() -> None:
    door = door_to(Client())
    assert door.most_tokens() is None
    door.pace.chat_arrived()
    assert door.most_tokens() == STEP_TOKENS
    await door.encode((1, 2, 3), Command())
