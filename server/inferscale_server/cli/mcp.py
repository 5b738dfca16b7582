"""`inferscale mcp`: one user's memory for programs that speak the Model Context Protocol."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from inferscale_server.cli.connection import KeyOption, UrlOption, UserOption
from inferscale_server.errors import ConfigError

if TYPE_CHECKING:
    from mcp.server.transport_security import TransportSecuritySettings

TransportOption = Annotated[
    Literal["stdio", "http"], typer.Option("--transport", help="How the other program reaches it.")
]
HostOption = Annotated[str, typer.Option("--host", help="http: where it listens; this machine alone.")]
PortOption = Annotated[int, typer.Option("--port", min=1, max=65535, help="http: on which port, below /mcp.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="mcp")(mcp)


def mcp(
    user: UserOption,
    transport: TransportOption = "stdio",
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Serve one user's memory to an MCP client: add, search, list and delete."""
    if find_spec("mcp") is None:
        raise ConfigError("the MCP server needs a package more: pip install 'inferscale-sdk[mcp]'")
    if not _is_loopback(host):
        raise ConfigError(f"option 'host': value {host!r} is reachable from elsewhere, and MCP asks nobody for a key")
    asyncio.run(_serve(user, transport, host, port, url, api_key))


async def _serve(user: str, transport: str, host: str, port: int, url: str | None, api_key: str | None) -> None:
    from inferscale_sdk import AsyncInferScaleClient
    from inferscale_server.cli.memory_tools import memory_server

    try:
        client = AsyncInferScaleClient(base_url=url, api_key=api_key)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    async with client:
        server = memory_server(client, user)
        if transport == "stdio":
            await server.run_stdio_async()
        else:
            await server.run_streamable_http_async(host=host, port=port, transport_security=local_names(host))


def local_names(host: str) -> TransportSecuritySettings:
    """Take only requests under this machine's own names. A web page whose name was pointed at a loopback address (DNS
    rebinding) calls from here too. The SDK does this by itself for three hosts, and 127.0.0.2 is none of them."""
    from mcp.server.transport_security import TransportSecuritySettings

    listening = f"[{ip_address(host)}]" if ":" in host else host
    names = sorted({listening, "127.0.0.1", "localhost", "[::1]"})
    hosts = [*names, *(f"{name}:*" for name in names)]  # without a port it is 80
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=[f"http://{name}" for name in hosts])


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
