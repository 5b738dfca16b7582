"""Tensor parallel 2 equals 1: the same answers, from two slabs and from two files a chunk."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from inferscale_server.config import ServerConfig
from inferscale_server.types import LOCAL_TENANT, Owner
from tests.engine.conftest import start_engine
from tests.engine.live import Answer, LiveServer, assert_same

from .conftest import VLLM_ARGS, forget_metrics
from .models import CORPUS, write

FACTS = ("Omar keeps three goats that are named after rivers.", "The spare key lies under the third flower pot.")
QUESTION = "Where does the key lie?"
OWNER = Owner(LOCAL_TENANT, "both")


async def answers_of(server: LiveServer, ranks: int) -> list[Answer]:
    """A context's answer, the facts' answer, and the latter again with KV that was read back from the disk."""
    context = await server.chat_encoded("both", QUESTION, context=[CORPUS[:120]])
    text = await server.chat("both", QUESTION, mode="text", context=[CORPUS[:120]])
    assert_same(context, text)
    await server.remember("both", *FACTS)
    encoded = await server.chat("both", QUESTION)
    files = [
        path for stored in server.brain.disk.shelf.of(OWNER.digest()) for path in server.brain.disk._paths(stored.stem)
    ]
    assert len(files) >= len(FACTS) * ranks and all(path.exists() for path in files)
    for chunk in server.catalog.of(OWNER):
        server.catalog.drop(chunk.key)
    before = server.brain.encoder.results["stored"]
    loaded = await server.chat_encoded("both", QUESTION)
    assert server.brain.encoder.results["stored"] == before  # so it came from the disk: there is no host tier
    assert encoded.told["mode"] == loaded.told["mode"] == "kv"
    assert_same(encoded, loaded)
    return [context, text, encoded, loaded]


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.asyncio(loop_scope="session")
async def test_two_ranks_answer_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write("gemma3", tmp_path / "model")
    monkeypatch.setattr("tests.engine.conftest.HOST_ROWS", 0)
    found = {}
    for ranks in (1, 2):
        monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "|".join("01"[:ranks]))
        folder = tmp_path / str(ranks)
        folder.mkdir()
        forget_metrics()
        config = ServerConfig(data_dir=folder / "data", cache_dir=folder / "cache", kv_device_gib=0.05, tail_tokens=0)
        args = (*VLLM_ARGS, "--tensor-parallel-size", str(ranks))
        async with AsyncExitStack() as stack:
            server = await start_engine(stack, config, str(model), folder, args)
            assert server.brain.support.refusals == []
            found[ranks] = await answers_of(server, ranks)
    for one, two in zip(found[1], found[2], strict=True):
        assert_same(one, two)
