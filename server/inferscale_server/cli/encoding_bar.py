"""How far the encoding of one user's facts is: a bar on stderr, and none when that is not a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from inferscale_sdk import Footprint, InferScaleClient

WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the user's facts are encoded; shows how far.")]


def wait_encoded(client: InferScaleClient, user: str, console: Console | None = None) -> None:
    """Return when no fact of the user waits for its KV, however long that takes. Raises the SDK's errors."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task, most = progress.add_task("encoded", total=None), 0

        def show(seen: Footprint) -> None:
            nonlocal most
            most = max(most, seen.queued)
            progress.update(task, total=most, completed=most - seen.queued)

        client.memories.wait_encoded(user, math.inf, on_progress=show)
