"""`inferscale users` and `inferscale status`: what a server says of itself, through the SDK."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from inferscale_server.cli.connection import KeyOption, UrlOption, connect
from inferscale_server.cli.rows import show

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for other programs.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(name="users")(users)
    app.command(name="status")(status)


def users(
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many, by name.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the users that have facts, with their counts. Needs a key with the role admin, where there are keys."""
    with connect(url, api_key) as client:
        show(islice(client.users.list(), limit), ("user_id", "facts"), as_json, "no users")


def status(url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Show what the server says of itself, as JSON: model, embedder, KV support, what waits to be encoded."""
    with connect(url, api_key) as client:
        print(client.status().model_dump_json(indent=2))
