"""MCP clients see one user's memory and nobody else's, and failures reach the model as words."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent

from inferscale_sdk import AsyncInferScaleClient
from inferscale_server.cli import main
from inferscale_server.cli.mcp import local_names
from inferscale_server.cli.memory_tools import memory_server as mcp_server
from tests.cli.memory_server import memory_server
from tests.edge.conftest import guarded, running

TOOLS = {"add_memory", "search_memories", "list_memories", "delete_memory"}


@pytest.fixture
async def sdk(tmp_path: Path) -> AsyncIterator[AsyncInferScaleClient]:
    async with running(tmp_path) as services:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(guarded(services)))
        async with http, AsyncInferScaleClient(http_client=http, max_retries=0) as client:
            yield client


@pytest.fixture(params=["legacy", "auto"])
def unconnected(sdk: AsyncInferScaleClient, request: pytest.FixtureRequest) -> Client:
    """A client of Alice's tools, by the older and by the newer handshake; a test enters it in its own task."""
    return Client(mcp_server(sdk, "alice"), mode=request.param)


def words(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def called(client: Client, tool: str, **arguments: object) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    content: dict[str, Any] | None = result.structured_content
    assert content is not None, result
    return content


async def failed(client: Client, tool: str, **arguments: object) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return words(result)


async def test_there_are_four_tools_and_none_takes_a_user(unconnected: Client) -> None:
    async with unconnected as alice:
        tools = {tool.name: tool for tool in (await alice.list_tools()).tools}
        assert set(tools) == TOOLS
        taken = {name for tool in tools.values() for name in tool.input_schema["properties"]}
        assert taken == {"text", "query", "limit", "cursor", "id"}
        assert all(tool.description and tool.annotations for tool in tools.values())


async def test_a_memory_is_added_found_listed_and_deleted(unconnected: Client) -> None:
    async with unconnected as alice:
        added = await called(alice, "add_memory", text="Rex is a dog.")
        assert added["status"] == "stored"
        assert (await called(alice, "add_memory", text="Rex is a dog."))["status"] == "duplicate"
        [hit] = (await called(alice, "search_memories", query="Rex is a dog."))["memories"]
        assert (hit["id"], hit["text"], round(hit["score"], 3)) == (added["id"], "Rex is a dog.", 1.0)
        await called(alice, "add_memory", text="Tea is hot.")
        first = await called(alice, "list_memories", limit=1)
        assert [one["text"] for one in first["memories"]] == ["Rex is a dog."]
        rest = await called(alice, "list_memories", cursor=first["next_cursor"])
        assert ([one["text"] for one in rest["memories"]], rest["next_cursor"]) == (["Tea is hot."], None)
        assert await called(alice, "delete_memory", id=added["id"]) == {"id": added["id"]}
        assert [one["text"] for one in (await called(alice, "list_memories"))["memories"]] == ["Tea is hot."]


async def test_another_users_memory_does_not_exist(unconnected: Client, sdk: AsyncInferScaleClient) -> None:
    async with unconnected as alice:
        [canary] = (await sdk.memories.add("bob", facts=["The code is 4417."])).ids
        assert (await called(alice, "search_memories", query="The code is 4417."))["memories"] == []
        assert (await called(alice, "list_memories"))["memories"] == []
        assert "no fact" in await failed(alice, "delete_memory", id=canary)
        assert (await sdk.memories.get(canary, "bob")).text == "The code is 4417."


async def test_two_users_call_100_times_each_and_never_meet(sdk: AsyncInferScaleClient) -> None:
    async with Client(mcp_server(sdk, "ann")) as ann, Client(mcp_server(sdk, "ben")) as ben:
        for number in range(50):
            for name, client in (("ann", ann), ("ben", ben)):
                await called(client, "add_memory", text=f"{name} code {number}")
                found = await called(client, "search_memories", query=f"code {number}", limit=100)
                texts = [one["text"] for one in found["memories"]]
                assert f"{name} code {number}" in texts and all(text.startswith(name) for text in texts)


async def test_failures_are_words_for_the_model(unconnected: Client) -> None:
    async with unconnected as alice:
        assert "must be a string that is not empty" in await failed(alice, "add_memory", text=" ")
        assert "must not be empty" in await failed(alice, "delete_memory", id="")
        assert "limit" in await failed(alice, "search_memories", query="x", limit=0)
        assert "cursor" in await failed(alice, "list_memories", cursor="nonsense")


async def test_a_server_that_is_away_is_a_tool_error() -> None:
    away = AsyncInferScaleClient(base_url="http://127.0.0.1:9", max_retries=0)
    async with away, Client(mcp_server(away, "alice")) as tools:
        assert "connection failed" in await failed(tools, "search_memories", query="x")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with memory_server(tmp_path) as address:
        yield address


async def test_the_command_speaks_mcp_on_its_standard_streams(url: str) -> None:
    command = ["-m", "inferscale_server.cli", "mcp", "--user", "alice", "--base-url", url]
    started = StdioServerParameters(command=sys.executable, args=command, env={"PYTHONPATH": ":".join(sys.path)})
    async with Client(started) as client:
        added = await called(client, "add_memory", text="Rex is a dog.")
        [hit] = (await called(client, "search_memories", query="dog"))["memories"]
    assert hit["id"] == added["id"]


async def test_the_tools_are_served_over_http_too(sdk: AsyncInferScaleClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        app = mcp_server(sdk, "alice").streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        serving = asyncio.create_task(server.serve([listening]))
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            await called(client, "add_memory", text="Rex is a dog.")
            [one] = (await called(client, "list_memories"))["memories"]
        server.should_exit = True
        await serving
    assert one["text"] == "Rex is a dog."


@pytest.fixture
def address(url: str) -> Iterator[str]:
    """`inferscale mcp --transport http` in a process, on a loopback address that the SDK does not know as one."""
    with socket.create_server(("127.0.0.2", 0)) as free:
        port = free.getsockname()[1]
    where = ["--transport", "http", "--host", "127.0.0.2", "--port", str(port)]
    command = [sys.executable, "-m", "inferscale_server.cli", "mcp", "--user", "alice", "--base-url", url, *where]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as waiting:  # until it listens
            waiting.get(f"http://127.0.0.2:{port}/")
        yield f"http://127.0.0.2:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


async def test_the_command_speaks_mcp_over_http_and_only_under_this_machines_names(address: str) -> None:
    async with Client(address) as client:
        added = await called(client, "add_memory", text="Rex is a dog.")
        [hit] = (await called(client, "search_memories", query="dog"))["memories"]
    assert hit["id"] == added["id"]
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx.AsyncClient(headers={"accept": "application/json, text/event-stream"}) as page:
        rebound = await page.post(address, json=asked, headers={"host": "rebound.example"})
        foreign = await page.post(address, json=asked, headers={"origin": "http://rebound.example"})
        own = await page.post(address, json=asked, headers={"origin": address.removesuffix("/mcp")})
    assert (rebound.status_code, foreign.status_code) == (421, 403)
    assert own.status_code not in (421, 403), own.text


@pytest.mark.parametrize(("host", "name"), [("127.8.8.8", "127.8.8.8"), ("::1", "[::1]"), ("0:0:0:0:0:0:0:1", "[::1]")])
def test_every_loopback_address_is_guarded_against_rebinding(host: str, name: str) -> None:
    guard = local_names(host)
    assert guard.enable_dns_rebinding_protection
    assert {name, f"{name}:*", "localhost:*"} <= set(guard.allowed_hosts)
    assert {one.removeprefix("http://") for one in guard.allowed_origins} == set(guard.allowed_hosts)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--transport", "http", "--host", "0.0.0.0"), "option 'host'"),
        (("--base-url", "nowhere"), "base_url"),
    ],
)
def test_the_command_refuses_what_is_unsafe_or_wrong(
    argv: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mcp", "--user", "alice", *argv])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_the_pages_python_runs_as_written(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text("utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "http://127.0.0.1:8000" in code and 'command="inferscale"' in code
    script = tmp_path / "inferscale"  # the page's reader has installed the package
    start = f"exec '{sys.executable}' -m inferscale_server.cli \"$@\""
    script.write_text(f"#!/bin/sh\nPYTHONPATH='{':'.join(sys.path)}' {start}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    exec(compile(code.replace("http://127.0.0.1:8000", url), "mcp.md", "exec"), {})
    assert capsys.readouterr().out == "My dog is called Bruno.\n"
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == TOOLS
