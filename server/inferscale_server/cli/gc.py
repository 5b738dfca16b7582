"""`inferscale gc`: the bytes of what was deleted."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from inferscale_server.cli import folder

DaysOption = Annotated[
    float | None,
    typer.Option("--tombstone-days", min=0, help="Forget after so many days that a fact existed (default: 30)."),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="gc")(gc)


def gc(
    tombstone_days: DaysOption = None,
    data_dir: folder.DataDirOption = None,
    config: folder.ConfigOption = None,
    url: folder.UrlOption = None,
    api_key: folder.KeyOption = None,
    as_json: folder.JsonOption = False,
) -> None:
    """Remove old tombstones, expired idempotency rows, orphaned KV files and free pages of the fact store.

    Searches and chats go on meanwhile, adds and deletes wait. Needs free disk space of the store's size.
    """
    options = {} if tombstone_days is None else {"tombstone_days": tombstone_days}
    with folder.reach(data_dir, config, url, api_key) as way, folder.waiting("gc"):
        answer = _clean(way, options) if way.server is None else way.server.ask("gc", options)
    line = (
        f"fact store {folder.mib(answer['bytes_before'])} -> {folder.mib(answer['bytes_after'])}; removed "
        f"{answer['tombstones']} tombstones, {answer['idempotency_rows']} idempotency rows, "
        f"{answer['kv_files']} KV files"
    )
    folder.show(answer, line, as_json)


def _clean(way: folder.Way, options: dict[str, float]) -> folder.Answer:
    from contextlib import closing

    from inferscale_server.cleanup import clean
    from inferscale_server.facts import FactStore
    from inferscale_server.orphans import KV_FOLDER

    path = way.config.facts_path
    with closing(FactStore(path)) as store:
        return asdict(clean(store, path, way.config.data_path / KV_FOLDER, **options))
