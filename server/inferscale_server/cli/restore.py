"""`inferscale restore`: a backup in the place of the facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferscale_server.cli import folder
from inferscale_server.cli.rows import counted

FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The backup.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="restore")(restore)


def restore(
    file: FileArgument,
    force: folder.ForceOption = False,
    data_dir: folder.DataDirOption = None,
    config: folder.ConfigOption = None,
    as_json: folder.JsonOption = False,
) -> None:
    """Check a backup and put it in the place of the facts. The server must be stopped.

    Facts that were added after the backup are gone then, and facts that were deleted after it are back. KV is encoded
    again at the next start. A store that cannot be read is kept beside the new one.
    """
    from inferscale_server.backup import restore as put_in_place
    from inferscale_server.config import load_config
    from inferscale_server.data_folder import DataFolder
    from inferscale_server.orphans import KV_FOLDER

    settings = load_config({"data_dir": data_dir}, file=config)
    derived = (settings.data_path / KV_FOLDER,)
    held = DataFolder.hold(settings.data_path, facts=settings.facts_path)
    with held, folder.progress("restore") as tell:
        done = put_in_place(file.expanduser(), settings.facts_path, derived, force=force, tell=tell)
    kept = None if done.kept is None else str(done.kept)
    answer = {"facts": done.facts, "replaced_facts": done.replaced_facts, "kept": kept}
    also = f"; the store that could not be read is {kept}" if kept else ""
    line = f"{counted(done.facts, 'fact')} in {settings.facts_path}, in the place of {done.replaced_facts}{also}"
    folder.show(answer, line, as_json)
