"""LoRA adapters: a chat with one gets KV that this adapter computed, which equals its text, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file

from inferscale_server.config import ServerConfig
from inferscale_server.types import LOCAL_TENANT, Owner
from tests.engine.conftest import start_engine
from tests.engine.live import Answer, LiveServer, assert_same

from .conftest import VLLM_ARGS, forget_metrics
from .models import write

pytestmark = pytest.mark.long

RANK, WIDTH, LAYERS, SCALE = 8, 128, 3, 0.3
PROJECTIONS = {"q_proj": 128, "k_proj": 64, "v_proj": 64}
"""And how wide each is."""
FACT = "The spare key lies under the third flower pot."


def write_adapter(folder: Path, seed: int) -> Path:
    """An adapter of all query, key and value projections, large enough to change answers."""
    folder.mkdir()
    dice = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for projection, width in PROJECTIONS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            weights[f"{name}.lora_A.weight"] = SCALE * torch.randn(RANK, WIDTH, generator=dice)
            weights[f"{name}.lora_B.weight"] = SCALE * torch.randn(width, RANK, generator=dice)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(PROJECTIONS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A tiny Llama with two adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    model = write("llama", folder / "model")
    adapters = [f"{name}={write_adapter(folder / name, seed)}" for seed, name in enumerate(("first", "second"))]
    forget_metrics()
    config = ServerConfig(data_dir=folder / "data", cache_dir=folder / "cache", kv_device_gib=0.05, tail_tokens=0)
    args = (*VLLM_ARGS, "--enable-lora", "--max-lora-rank", str(RANK), "--lora-modules", *adapters)
    async with AsyncExitStack() as stack:
        yield await start_engine(stack, config, str(model), folder, args)


async def ask(server: LiveServer, model: str, mode: str = "kv", **memory: object) -> Answer:
    """The same question, of one model."""
    body = server.body("alice", "Where is the key?", {"mode": mode, **memory}, max_tokens=12)
    return await server.send({**body, "model": model} if model else body)


def readers(server: LiveServer) -> list[Owner]:
    """Alice as each of the models that were asked reads her facts."""
    return list(server.brain.readers.of(Owner(LOCAL_TENANT, "alice")))


async def test_each_adapter_has_kv_of_its_own_and_answers_as_with_text(server: LiveServer) -> None:
    await server.remember("alice", FACT)
    answers = {}
    for name in ("", "first", "second"):
        text = await ask(server, name, "text")
        early = await ask(server, name)
        assert early.told["mode"] == ("text" if name else "kv"), "nobody has encoded it for this adapter yet"
        await server.encoded()
        answers[name] = kv = await ask(server, name)
        assert (kv.told["mode"], kv.told["reason"]) == ("kv", "encoded")
        assert kv.cached >= kv.told["injected_tokens"] > kv.told["memory_tokens"] > 0, "header and fact"
        assert_same(kv, text)
        assert [fact["text"] for fact in kv.told["facts"]] == [FACT]
        again = await ask(server, name)
        assert_same(again, text)
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 3
    chunks = [server.catalog.of(reader) for reader in readers(server)]
    assert [[chunk.key.kind for chunk in some] for some in chunks] == [["fact"]] * 3
    pairs = [(chunks[0][0], chunks[1][0]), (chunks[0][0], chunks[2][0]), (chunks[1][0], chunks[2][0])]
    for one, other in pairs:
        apart = await server.plugin._desk._door.difference(one.extents, other.extents)
        assert apart.values > 0.1, "the adapters change values"
    after = await ask(server, "")
    assert_same(after, answers[""])


async def test_a_conversation_with_an_adapter_keeps_its_block(server: LiveServer) -> None:
    await server.remember("alice", FACT)
    await ask(server, "first")
    await server.encoded()
    turns = [
        server.body("alice", "Where is the key?", {"mode": "kv"}, max_tokens=4, model=name)
        for name in ("first", "first", "second")
    ]
    told = []
    for body in turns:
        body["inferscale"]["session_id"] = "s"
        told.append((await server.send(body)).told)
    states = [one["session"]["state"] for one in told]
    assert states == ["begun", "kept", "begun"] and [one["mode"] for one in told] == ["kv"] * 3


async def test_responses_read_through_adapters_too(server: LiveServer) -> None:
    await server.remember("alice", FACT)
    await ask(server, "second")
    await server.encoded()
    body = {"model": "second", "input": "Where is the key?", "max_output_tokens": 4, "temperature": 0}
    answer = await server.client.post(
        "/v1/responses", json={**body, "inferscale": {"user_id": "alice", "memory": {"mode": "kv"}}}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["inferscale"]["mode"] == "kv"


async def test_a_name_that_nobody_serves_gets_nobodys_kv(server: LiveServer) -> None:
    await server.remember("alice", FACT)
    assert (await ask(server, "third")).status == 404
    through = server.plugin._desk._door.adapters.through
    assert all(through(reader.adapter) is not None for reader in readers(server)[1:])


async def test_what_is_forgotten_is_forgotten_through_every_adapter(server: LiveServer) -> None:
    await server.remember("alice", FACT)
    await ask(server, "first")
    await server.encoded()
    assert any(server.catalog.of(reader) for reader in readers(server)[1:])
    gone = await server.client.delete("/v1/memories", params={"user_id": "alice"})
    assert gone.status_code == 200, gone.text
    assert not any(server.catalog.of(reader) for reader in readers(server))
    for name in ("", "first"):
        assert (await ask(server, name)).told["reason"] == "nothing_remembered"
    shelf = server.brain.disk.shelf
    assert {stored.identity.kind for stored in shelf.all()} <= {"header"}
