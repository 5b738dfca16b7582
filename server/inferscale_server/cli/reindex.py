"""`inferscale reindex`: all facts embedded by another embedder."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from inferscale_server.cli import folder
from inferscale_server.cli.rows import counted

POLL_SECONDS = 0.5

EmbedderOption = Annotated[
    str | None, typer.Option("--embedder", metavar="NAME", help="The new embedder (default: the configured one).")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="reindex")(reindex)


def reindex(
    embedder: EmbedderOption = None,
    data_dir: folder.DataDirOption = None,
    config: folder.ConfigOption = None,
    url: folder.UrlOption = None,
    api_key: folder.KeyOption = None,
    as_json: folder.JsonOption = False,
) -> None:
    """Embed all facts anew, after a change of embedder; the old vectors serve until the end.

    One that was interrupted is continued. Start the server with the same --embedder from then on.
    """
    with folder.reach(data_dir, config, url, api_key) as way, folder.progress("reindex") as tell:
        name = embedder or way.config.embedder
        number = _embed(way, name, tell) if way.server is None else _watch(way.server, name, tell)
    line = f"{counted(number, 'fact')} embedded with {name}; start the server with --embedder {name} from now on"
    folder.show({"facts": number, "embedder": name}, line, as_json)


def _embed(way: folder.Way, name: str, tell: folder.Tell) -> int:
    from contextlib import closing

    from inferscale_server.embed import load_embedder
    from inferscale_server.facts import FactStore
    from inferscale_server.reindex import reindex as embed_anew

    with closing(FactStore(way.config.facts_path)) as store:
        embedder = load_embedder(name, way.config.embedder_url, way.config.embedder_secret)
        return embed_anew(store, embedder, tell)


def _watch(server: folder.Server, name: str, tell: folder.Tell) -> int:
    from inferscale_server.errors import InferScaleError

    progress = server.ask("reindex", {"embedder": name})
    if progress["state"] == "loading":
        Console(stderr=True).print(f"the server loads {escape(name)}, and downloads it if it must", soft_wrap=True)
    while progress["state"] in ("loading", "running"):
        time.sleep(POLL_SECONDS)
        progress = server.ask("reindex", {}, method="GET")
        tell(progress["done"], progress["total"])
    if progress["state"] != "done":
        raise InferScaleError(f"the server at {server.url}: {progress.get('reason') or 'reindex was interrupted'}")
    return int(progress["total"])
