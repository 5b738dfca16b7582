"""One real vLLM engine a family, one after the other, each with a tiny model that is built for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from inferscale_server.config import ServerConfig
from tests.engine.conftest import start_engine
from tests.engine.live import LiveServer

from .models import POSITIONS, write

BLOCK = 32
VLLM_ARGS = (
    *("--dtype", "float32"),
    *("--max-model-len", str(POSITIONS)),
    *("--block-size", str(BLOCK)),
    *("--num-gpu-blocks-override", "96"),
    *("--max-num-batched-tokens", "256"),
    "--enforce-eager",
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """A server for the family that the test names; the next family's test ends it."""
    folder = tmp_path_factory.mktemp("family")
    model = write(request.param, folder / "model")
    forget_metrics()
    config = ServerConfig(data_dir=folder / "data", cache_dir=folder / "cache", kv_device_gib=0.05, tail_tokens=0)
    async with AsyncExitStack() as stack:
        yield await start_engine(stack, config, str(model), folder, VLLM_ARGS)


def forget_metrics() -> None:
    """Names are unique in a process; a server that was here before has left its own."""
    for collector, names in list(REGISTRY._collector_to_names.items()):
        if any(name.startswith("inferscale") for name in names):
            REGISTRY.unregister(collector)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a server share its event loop."""
    for item in items:
        if Path(__file__).parent in item.path.parents and "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
