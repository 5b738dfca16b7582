"""`inferscale memories export` and `import`: one user's facts as a file of JSON lines, with progress."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn

from inferscale_server.cli.connection import KeyOption, UrlOption, UserOption, connect
from inferscale_server.cli.encoding_bar import WaitOption, wait_encoded
from inferscale_server.cli.migration import System, migrate
from inferscale_server.cli.rows import counted
from inferscale_server.errors import InferScaleError

STDIO = "-"

TargetArgument = Annotated[str, typer.Argument(metavar="[FILE]", help="Where to; - or nothing: stdout.")]
SourceArgument = Annotated[str, typer.Argument(metavar="[FILE]", help="Where from; - or nothing: stdin.")]
SystemOption = Annotated[
    System | None, typer.Option("--from", help="Another system's export or store; nothing: our own export.")
]
UserThereOption = Annotated[
    str | None, typer.Option("--from-user", help="The user's id there, when it is another than here.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as one JSON object, for other programs.")]


class FileFault(InferScaleError):
    """A file that cannot be read or written."""


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(name="export")(export)
    app.command(name="import")(import_)


def export(user: UserOption, file: TargetArgument = STDIO, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Write a user's facts, one JSON object a line: text, metadata and times."""
    with connect(url, api_key) as client, _target(file) as target:
        total = client.footprint(user).facts
        number = 0
        with client.memories.export(user) as facts, _progress(MofNCompleteColumn()) as progress:
            task = progress.add_task("exported", total=total)
            for number, fact in enumerate(facts, 1):
                target.write(json.dumps(fact.raw, ensure_ascii=False).encode() + b"\n")
                progress.update(task, completed=number)
    print(f"exported {counted(number, 'fact')}", file=sys.stderr)


def import_(
    user: UserOption,
    file: SourceArgument = STDIO,
    system: SystemOption = None,
    user_there: UserThereOption = None,
    wait: WaitOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Store facts of an exported file under this user. Can be run again: what is there is a duplicate."""
    if system is not None:
        _import_from(system, file, user, user_there, wait, as_json, url, api_key)
        return
    if user_there is not None:
        raise typer.BadParameter("--from-user needs --from")
    with connect(url, api_key) as client:
        with opened_source(file) as source, _progress(DownloadColumn()) as progress:
            size = None if file == STDIO else os.fstat(source.fileno()).st_size
            task = progress.add_task("imported", total=size)
            result = client.memories.import_(user, _counted(source, progress, task))
        if wait:
            wait_encoded(client, user)
    if as_json:
        print(result.model_dump_json())
    else:
        renamed = f", {result.new_ids} of them with a new id" if result.new_ids else ""
        print(f"{result.imported} imported{renamed}, {result.duplicates} duplicates, {len(result.failed)} failed")
        for one in result.failed:
            print(f"line {one.line}: {one.reason}", file=sys.stderr)
    if result.failed:
        raise typer.Exit(1)


def _import_from(
    system: System,
    file: str,
    user: str,
    user_there: str | None,
    wait: bool,
    as_json: bool,
    url: str | None,
    api_key: str | None,
) -> None:
    if file == STDIO:
        raise typer.BadParameter("--from needs a file or a folder")
    with connect(url, api_key) as client:
        done = migrate(client, system, Path(file).expanduser(), user, user_there)
        if wait:
            wait_encoded(client, user)
    if as_json:
        print(json.dumps(asdict(done), ensure_ascii=False))
    else:
        left_out = "".join(f", {number} left out ({reason})" for reason, number in done.left_out.items())
        print(f"{done.imported} imported, {done.duplicates} duplicates, {len(done.failed)} failed{left_out}")
        for one in done.failed:
            print(f"line {one.line}: {one.reason}", file=sys.stderr)
    if done.failed:
        raise typer.Exit(1)


def _counted(lines: Iterable[bytes], progress: Progress, task: TaskID) -> Iterator[bytes]:
    for line in lines:
        progress.advance(task, len(line))
        yield line


def _progress(numbers: ProgressColumn) -> Progress:
    """A bar on stderr, and none when that is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), numbers)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def _target(file: str) -> Iterator[IO[bytes]]:
    """Stdout, or a file that appears only when all of it is written. Raises FileFault."""
    if file == STDIO:
        yield sys.stdout.buffer
        return
    path = Path(file).expanduser()
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as target:
            yield target
        part.replace(path)
    except OSError as error:
        raise FileFault(f"{file}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def opened_source(file: str) -> Iterator[IO[bytes]]:
    """Stdin, or a file. Raises FileFault."""
    if file == STDIO:
        yield sys.stdin.buffer
        return
    try:
        source = Path(file).expanduser().open("rb")
    except OSError as error:
        raise FileFault(f"{file}: {error.strerror or error}") from error
    with source:
        yield source
