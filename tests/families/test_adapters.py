"""LoRA adapters: a chat with one gets its memory as text, and shares no cached token with the base or another one."""

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
from tests.engine.conftest import start_engine
from tests.engine.live import Answer, LiveServer

from .conftest import VLLM_ARGS, forget_metrics
from .models import write

pytestmark = pytest.mark.long

RANK, WIDTH, LAYERS = 8, 128, 3
FACT = "The spare key lies under the third flower pot."


def write_adapter(folder: Path, seed: int) -> Path:
    """An adapter of all query projections, large enough to change answers."""
    folder.mkdir()
    dice = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, WIDTH, generator=dice)
        weights[f"{name}.lora_B.weight"] = torch.randn(WIDTH, RANK, generator=dice)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
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


async def ask(server: LiveServer, model: str) -> Answer:
    """The same question, of one model."""
    body = server.body("alice", "Where is the key?", {"mode": "kv"}, max_tokens=12)
    return await server.send({**body, "model": model} if model else body)


async def test_adapters_get_text_and_share_nothing(server: LiveServer) -> None:
    await server.remember("alice", FACT)
    base = await ask(server, "")
    assert (base.told["mode"], base.told["injected_tokens"] > 0) == ("kv", True)
    answers = {}
    for name in ("first", "second"):
        cold, again = await ask(server, name), await ask(server, name)
        answers[name] = cold.tokens
        assert (cold.told["mode"], cold.told["reason"], cold.told["injected_tokens"]) == ("text", "adapter", 0)
        assert cold.cached == 0, "blocks of the base or of another adapter"
        assert again.tokens == cold.tokens and [fact["text"] for fact in cold.told["facts"]] == [FACT]
    assert answers["first"] != answers["second"] and base.tokens not in answers.values()
    after = await ask(server, "")
    assert after.tokens == base.tokens and after.told["mode"] == "kv"
