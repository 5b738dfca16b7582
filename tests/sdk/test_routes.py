"""Both clients reach every memory route of the server, and can ask for vectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import pytest

from inferscale_sdk import InferScaleClient, InferScaleError
from inferscale_server.edge.allowlist import MEMORY_ROUTES

from .script import answer, failure, script

VECTORS = {"data": [{"embedding": [1.0, 0.0], "index": 0}, {"embedding": [0.0, 1.0], "index": 1}], "model": "letters"}


def named(path: str) -> str:
    """The path with its placeholders, and the ids that the calls below name, all alike."""
    return re.sub(r"{[^}]*}|\bf1\b|\balice\b", "{}", path)


CALLS: tuple[Callable[[InferScaleClient], object], ...] = (
    lambda client: client.ready(),
    lambda client: client.status(),
    lambda client: client.footprint("alice"),
    lambda client: client.embed(["a"]),
    lambda client: list(client.users.list()),
    lambda client: client.memories.add("alice", facts=["a"]),
    lambda client: client.memories.search("alice", "a"),
    lambda client: list(client.memories.list("alice")),
    lambda client: client.memories.get("f1", user="alice"),
    lambda client: client.memories.update("f1", user="alice", text="b"),
    lambda client: client.memories.history("f1", user="alice"),
    lambda client: client.memories.delete("f1", user="alice"),
    lambda client: client.memories.delete_all("alice"),
    lambda client: list(client.memories.export("alice")),
    lambda client: client.memories.import_("alice", [{"text": "a"}]),
)


def test_the_sdk_asks_every_memory_route_with_every_method() -> None:
    server = script(failure(400))
    client = server.client(max_retries=0)
    for call in CALLS:
        with suppress(InferScaleError):
            call(client)
    asked = {(request.method, named(request.url.path)) for request in server.requests}
    routes = {(method, named(route)) for route, methods in MEMORY_ROUTES.items() for method in methods}
    assert len(server.requests) == len(CALLS) and asked == routes


async def test_texts_become_vectors_in_their_order() -> None:
    server = script(answer(json=VECTORS), answer(json=VECTORS))
    assert server.client().embed(["a", "b"]) == [[1.0, 0.0], [0.0, 1.0]]
    assert (server.requests[-1].url.path, server.body) == ("/v1/embeddings", {"input": ["a", "b"]})
    assert await server.async_client().embed(("a", "b")) == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(TypeError, match="list of strings"):
        server.client().embed("a")
