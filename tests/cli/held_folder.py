"""A process that holds a data folder and serves its memory and admin routes, without a model. `python -m … FOLDER`."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from inferscale_server.data_folder import DataFolder, server_url
from inferscale_server.edge.admin import build_admin_router
from inferscale_server.edge.guard import Guard
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.upkeep import Upkeep
from tests.memory.fakes import FakeEmbedder, RecordingSink


async def serve(path: Path) -> None:
    """Until killed. Prints the address once it can be called."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        url = server_url(*door.getsockname()[:2])
        with DataFolder.hold(path, url):
            store = path / "facts.sqlite3"
            memory = MemoryService(FactStore(store), ExactIndex(), FakeEmbedder(), RecordingSink())
            await memory.start()
            app = FastAPI()
            upkeep = Upkeep(store, memory, path / "kv", lambda name: FakeEmbedder(name, 8))
            app.include_router(build_admin_router(lambda: upkeep))
            app.add_middleware(Guard)
            print(url, flush=True)
            await uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off")).serve([door])


@contextmanager
def held(path: Path) -> Iterator[str]:
    """Another process holds `path` for as long as the block lasts; its address."""
    command = [sys.executable, "-m", "tests.cli.held_folder", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
