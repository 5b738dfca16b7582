"""The async client is the sync client with `await`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import inferscale_sdk as sdk
from inferscale_sdk._page import AsyncPage, Page
from inferscale_sdk._raw import (
    AsyncMemoriesWithRawResponse,
    AsyncUsersWithRawResponse,
    MemoriesWithRawResponse,
    UsersWithRawResponse,
)
from inferscale_sdk._user import AsyncUserMemories, UserMemories

from .script import script

PAIRS = [
    (sdk.InferScaleClient, sdk.AsyncInferScaleClient),
    (sdk.Memories, sdk.AsyncMemories),
    (sdk.UserClient, sdk.AsyncUserClient),
    (sdk.ChatStream, sdk.AsyncChatStream),
    (sdk.FactExport, sdk.AsyncFactExport),
    (sdk.Users, sdk.AsyncUsers),
    (Page, AsyncPage),
]
DUNDERS = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__init__": "__init__"}


def public(cls: type) -> dict[str, object]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_") or name in DUNDERS}


def unasync(text: object) -> str:
    return str(text).replace("Async", "")


def shape(function: Callable[..., object]) -> tuple[list[tuple[object, ...]], str]:
    signature = inspect.signature(function)
    parameters: list[tuple[object, ...]] = [
        (p.name, p.kind, p.default, unasync(p.annotation)) for p in signature.parameters.values()
    ]
    return parameters, unasync(signature.return_annotation)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].__name__)
def test_both_have_the_same_methods_with_the_same_signatures(pair: tuple[type, type]) -> None:
    plain, twin = pair
    for name, member in public(plain).items():
        other = vars(twin)[DUNDERS.get(name, name)]
        assert type(member) is type(other), name
        if inspect.isfunction(member) and inspect.isfunction(other):
            assert shape(member) == shape(other), name
    assert {DUNDERS.get(name, name) for name in public(plain)} <= set(vars(twin))
    assert {name for name in vars(twin) if not name.startswith("_")} == {
        name for name in vars(plain) if not name.startswith("_")
    }


@pytest.mark.parametrize("name", ["close", "chat", "status", "footprint", "ready"])
def test_what_talks_to_the_server_is_awaited_in_the_async_client(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(sdk.AsyncInferScaleClient, name))
    assert not inspect.iscoroutinefunction(getattr(sdk.InferScaleClient, name))


def methods_of(cls: type) -> set[str]:
    return {name for name, member in vars(cls).items() if inspect.isfunction(member) and name[0] != "_"}


def test_bound_memories_cover_every_memory_method() -> None:
    memories, twins = script().client().memories, script().async_client().memories
    assert set(vars(UserMemories(memories, "a"))) == methods_of(sdk.Memories)
    assert set(vars(AsyncUserMemories(twins, "a"))) == methods_of(sdk.Memories)


@pytest.mark.parametrize(
    ("pair", "plain"),
    [
        ((MemoriesWithRawResponse, AsyncMemoriesWithRawResponse), sdk.Memories),
        ((UsersWithRawResponse, AsyncUsersWithRawResponse), sdk.Users),
    ],
)
def test_raw_methods_cover_every_method_that_is_one_request(pair: tuple[type, type], plain: type) -> None:
    clients: tuple[Any, Any] = (script().client(), script().async_client())
    for cls, client in zip(pair, clients, strict=True):
        assert set(vars(cls(client._transport))) == methods_of(plain) - {"wait_encoded"}


def test_raw_methods_keep_the_signatures_of_the_plain_ones() -> None:
    client = script().client()
    for name in methods_of(sdk.Memories) - {"wait_encoded"}:
        raw = inspect.signature(getattr(client.memories.with_raw_response, name)).parameters
        assert raw == inspect.signature(getattr(client.memories, name)).parameters
