"""An FP8 cache: keys and values are taken before vLLM rounds them and put back through its own rounding."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from inferscale_server.config import ServerConfig
from tests.engine.conftest import start_engine

from .conftest import VLLM_ARGS, forget_metrics
from .models import CORPUS, write


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.asyncio(loop_scope="session")
async def test_injected_memory_answers_like_prefilled_within_the_caches_rounding(tmp_path: Path) -> None:
    model = write("qwen3", tmp_path / "model")
    forget_metrics()
    config = ServerConfig(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", kv_device_gib=0.05)
    async with AsyncExitStack() as stack:
        args = (*VLLM_ARGS, "--kv-cache-dtype", "fp8")
        server = await start_engine(stack, config, str(model), tmp_path, args)
        kv = (await server.client.get("/v1/inferscale/status")).json()["kv"]
        print(kv["gate"])
        assert kv["enabled"] and kv["gate"]["passed"]
        injected = await server.chat_encoded("fp8", "Where is the key?", context=[CORPUS[:120]], max_tokens=1)
        text = await server.chat("fp8", "Where is the key?", mode="text", context=[CORPUS[:120]], max_tokens=1)
        assert injected.told["mode"] == "kv" and injected.prompt_ids == text.prompt_ids
        assert abs(injected.logprobs[0] - text.logprobs[0]) < 0.25
