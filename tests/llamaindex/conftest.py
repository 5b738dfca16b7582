"""One scripted server a test, and both classes over it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from llama_index.llms.inferscale import InferScaleLLM
from llama_index.memory.inferscale import InferScaleMemory

from .scripted import ScriptedServer

MakeLLM = Callable[..., InferScaleLLM]
MakeMemory = Callable[..., InferScaleMemory]


@pytest.fixture
def server() -> ScriptedServer:
    return ScriptedServer()


@pytest.fixture
def make_llm(server: ScriptedServer) -> MakeLLM:
    """An LLM over the scripted server."""
    return lambda **fields: InferScaleLLM(client=server.client(), async_client=server.async_client(), **fields)


@pytest.fixture
def make_memory(server: ScriptedServer) -> MakeMemory:
    """A memory over the scripted server."""

    def make(user_id: str = "alice", **options: Any) -> InferScaleMemory:
        clients: dict[str, Any] = {"async_client": server.async_client(), **options}
        return InferScaleMemory.from_client(server.client(), user_id=user_id, **clients)

    return make
