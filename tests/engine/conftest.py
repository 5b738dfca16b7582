"""One real vLLM engine with the real app in this process, for all tests of this folder.

SmolLM2-135M in float32, blocks of 32 tokens and a pool of 96, so that edges and preemption come often. Clients reach
the app through an in-process transport; tests that must look inside get the plugin's brain.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from inferscale_server.config import ServerConfig
from inferscale_server.models import prepare_generator

from .live import LiveServer

BLOCK = 32
BLOCKS = 96
MAX_LEN = 2048
HOST_ROWS = 2048
VLLM_ARGS = (
    *("--dtype", "float32"),
    *("--max-model-len", str(MAX_LEN)),
    *("--block-size", str(BLOCK)),
    *("--num-gpu-blocks-override", str(BLOCKS)),
    *("--max-num-batched-tokens", "512"),
    "--enforce-eager",
)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    """The server, started once for this folder and ended before other tests start theirs."""
    folder = tmp_path_factory.mktemp("engine")
    config = ServerConfig(data_dir=folder / "data", kv_device_gib=0.75, tail_tokens=0, extractor="llm")
    model = str(prepare_generator(config.cache_path, lambda line: None))
    async with AsyncExitStack() as stack:
        yield await start_engine(stack, config, model, folder, VLLM_ARGS)


async def start_engine(
    stack: AsyncExitStack, config: ServerConfig, model: str, folder: Path, vllm_args: Sequence[str]
) -> LiveServer:
    """A server with a breakable connector, ended with the stack. One at a time in a process."""
    from inferscale_server.engine import launch

    stack.callback(_put_back, dict(os.environ))  # servers that other tests start would take it for the operator's
    rogue_file = folder / "rogue"
    rogue_file.write_text("")
    os.environ["ROGUE_CONNECTOR_FILE"] = str(rogue_file)
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # tests send functions to the worker
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    launch.prepare_environment(os.environ, ServerConfig().cache_path / launch.COMPILED)  # one for all runs
    args = launch.build_args(config, model, vllm_args)
    if args.kv_transfer_config.kv_connector == launch.CONNECTOR[0]:
        slab_rows = args.kv_transfer_config.kv_connector_extra_config["slab_rows"]
        args.kv_transfer_config = launch.transfer_config(slab_rows, ("RogueConnector", "tests.engine.rogue"), HOST_ROWS)
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.app import build_app

    engine = await stack.enter_async_context(build_async_engine_client(args))
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    (plugin,) = app.state.endpoint_plugins
    stack.push_async_callback(plugin.aclose)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=120)
    await stack.enter_async_context(client)
    return LiveServer(app, client, engine, plugin, rogue_file)


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def mended(server: LiveServer) -> AsyncIterator[None]:
    """Whatever a test breaks is whole for the next; nothing that it pinned stays."""
    yield
    server.rogue("")
    await server.encoded()
    assert server.catalog.pins == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs the engine, and shares its event loop."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def _put_back(environ: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
