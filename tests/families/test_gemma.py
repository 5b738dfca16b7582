"""Gemma-3-270M from its package, with real text: hybrid layers and two rotations in a model that has learnt them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from inferscale_server.config import ServerConfig
from tests.engine.conftest import start_engine
from tests.engine.live import LiveServer, assert_same
from tests.engine.test_equivalence import QUESTIONS, STORY

from .conftest import VLLM_ARGS, forget_metrics

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gemma_model.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder, as `scripts/gemma_model.py` makes it."""
    folder = tmp_path_factory.mktemp("gemma")
    subprocess.run([sys.executable, str(SCRIPT), str(folder)], check=True)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server of the model."""
    folder = tmp_path_factory.mktemp("served")
    forget_metrics()
    config = ServerConfig(data_dir=folder / "data", cache_dir=folder / "cache", kv_device_gib=0.5)
    async with AsyncExitStack() as stack:
        yield await start_engine(stack, config, str(model), folder, VLLM_ARGS)


async def test_the_gate_is_green_and_says_what_the_quality_probe_found(server: LiveServer) -> None:
    kv = (await server.client.get("/v1/inferscale/status")).json()["kv"]
    print(kv["gate"]["probes"], kv["gate"]["quality"])
    assert kv["enabled"] and kv["refusals"] == []
    assert kv["gate"]["quality"]["text"] < kv["gate"]["quality"]["off"]


async def test_one_chunk_that_holds_the_memory_answers_like_prefill(server: LiveServer) -> None:
    await server.chat_encoded("c2", QUESTIONS[0], context=[STORY])
    for question in QUESTIONS[:6]:
        kv = await server.chat("c2", question, context=[STORY])
        text = await server.chat("c2", question, mode="text", context=[STORY])
        assert kv.told["mode"] == "kv" and kv.prompt_ids == text.prompt_ids
        assert_same(kv, text, tolerance=5e-3)
