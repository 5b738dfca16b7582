"""The real routes over a real store behind a real port; only the embedder is small."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import uvicorn
from fastapi import FastAPI

from inferscale_server.edge.services import Services
from tests.edge.conftest import guarded, running


@contextmanager
def memory_server(folder: Path, app: Callable[[Services], FastAPI] = guarded) -> Iterator[str]:
    """Its address, for as long as the block lasts; `app` is what is served over the memory service."""
    started: Future[uvicorn.Server] = Future()
    with socket.create_server(("127.0.0.1", 0)) as listening:  # from here on a client waits and is not refused

        async def serve() -> None:
            async with running(folder) as services:
                server = uvicorn.Server(uvicorn.Config(app(services), log_level="error", lifespan="off"))
                started.set_result(server)
                await server.serve([listening])

        def work() -> None:
            try:
                asyncio.run(serve())
            except BaseException as error:
                if started.done():
                    raise
                started.set_exception(error)

        thread = Thread(target=work)
        thread.start()
        server = started.result()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
