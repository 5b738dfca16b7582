"""mem0 and a server with real memory behind a real port; the model is a function, the embedder hashes words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient
from tests.cli.memory_server import memory_server
from tests.openai.chat_app import ChatApp


@pytest.fixture
def chats() -> ChatApp:
    return ChatApp()


@pytest.fixture
def url(tmp_path: Path, chats: ChatApp) -> Iterator[str]:
    with memory_server(tmp_path, chats.over) as address:
        yield address


@pytest.fixture
def sdk(url: str) -> Iterator[InferScaleClient]:
    with InferScaleClient(base_url=url, max_retries=0) as client:
        yield client
