"""`inferscale backup`: all facts in one file, while the server goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferscale_server.cli import folder
from inferscale_server.cli.rows import counted

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="File to write.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="backup")(backup)


def backup(
    file: FileArgument,
    force: folder.ForceOption = False,
    data_dir: folder.DataDirOption = None,
    config: folder.ConfigOption = None,
    url: folder.UrlOption = None,
    api_key: folder.KeyOption = None,
    as_json: folder.JsonOption = False,
) -> None:
    """Write all facts of all users into one file, as they are now; a running server goes on meanwhile.

    The file holds facts in plain words: keep it as safe as the data folder, and do not keep it longer than deleted
    facts may live.
    """
    target = file.expanduser().absolute()
    with folder.reach(data_dir, config, url, api_key) as way:
        if way.server is not None:
            with folder.waiting(f"{way.server.url} writes {target}"):
                answer = way.server.ask("backup", {"path": str(target), "force": force})
        else:
            answer = _write(way, target, force)
    folder.show(
        answer, f"{counted(answer['facts'], 'fact')} in {answer['path']} ({folder.mib(answer['bytes'])})", as_json
    )


def _write(way: folder.Way, target: Path, force: bool) -> folder.Answer:
    from inferscale_server.backup import back_up

    with folder.progress("backup") as tell:
        written = back_up(way.config.facts_path, target, force=force, tell=tell)
    return {"path": str(written.path), "facts": written.facts, "bytes": written.bytes}
