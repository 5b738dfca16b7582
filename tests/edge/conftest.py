"""The real app in process: guard, routes, memory service and stores; only the embedder is small."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from inferscale_server.edge.guard import Guard
from inferscale_server.edge.routes import build_router
from inferscale_server.edge.services import Footprint, Services
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.types import Owner
from tests.memory.fakes import FakeEmbedder, RecordingSink


@asynccontextmanager
async def running(folder: Path, clock: Callable[[], float] = time.time) -> AsyncIterator[Services]:
    """A started memory service over the store in `folder`, ready from the start; `clock` gives its Unix seconds."""
    embedder = FakeEmbedder()
    store = FactStore(folder / "facts.sqlite3", clock=clock)
    memory = MemoryService(store, ExactIndex(), embedder, RecordingSink())
    await memory.start()

    async def footprint(owner: Owner) -> Footprint:
        return Footprint(memory.count(owner), 7, 1, 2, 3, 4, 5)

    async def embed(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return list(embedder.embed(texts))

    yield Services(memory, footprint, embed, embedder.name, lambda: None, lambda: {"model": "m"}, default_k=20)
    await memory.aclose()


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """A started memory service behind the routes."""
    async with running(tmp_path) as started:
        yield started


@pytest.fixture
async def bare_client(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    """The routes in a FastAPI app without the guard."""
    async with client_of(app_with(services)) as client:
        yield client


@pytest.fixture
async def client(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    """The routes behind the guard, as served."""
    async with client_of(guarded(services)) as client:
        yield client


def guarded(services: Services) -> FastAPI:
    """The memory routes behind the guard."""
    app = app_with(services)
    app.add_middleware(Guard)
    return app


def app_with(services: Services | None) -> FastAPI:
    """A FastAPI app with the memory routes alone."""
    app = FastAPI()
    app.include_router(build_router(lambda: services))
    return app


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client that talks to `app` in process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver")
