"""`inferscale verify`: do the stores check out?"""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferscale_server.cli import folder


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="verify")(verify)


def verify(
    data_dir: folder.DataDirOption = None,
    config: folder.ConfigOption = None,
    url: folder.UrlOption = None,
    api_key: folder.KeyOption = None,
    as_json: folder.JsonOption = False,
) -> None:
    """Check facts, vectors, history and KV files; exit 1 with the reason when something is wrong."""
    with folder.reach(data_dir, config, url, api_key) as way:
        if way.server is not None:
            with folder.waiting(f"{way.server.url} checks its stores"):
                answer = way.server.ask("verify", {})
        else:
            answer = _look(way)
    show(answer, as_json)
    if not answer["ok"]:
        raise typer.Exit(1)


def show(answer: folder.Answer, as_json: bool) -> None:
    """A table, and one line on standard error for each thing that is wrong; or the answer as it is."""
    if as_json:
        folder.show(answer, "", as_json)
        return
    table = Table("check", "found", "")
    for check in answer["checks"]:
        verdict = "[green]ok[/green]" if check["ok"] else f"[red]{escape(check['reason'])}[/red]"
        table.add_row(check["name"], escape(check["found"]), verdict)
    Console().print(table)
    for check in answer["checks"]:
        if not check["ok"]:
            print(f"inferscale verify: {check['name']}: {check['reason']}", file=sys.stderr)


def _look(way: folder.Way) -> folder.Answer:
    from inferscale_server.orphans import KV_FOLDER
    from inferscale_server.verify import show_verdict
    from inferscale_server.verify import verify as look

    with folder.progress("verify") as tell:
        return show_verdict(look(way.config.facts_path, way.config.data_path / KV_FOLDER, tell))
