"""`inferscale memories`: look into one user's facts and change them, through the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from inferscale_server.cli.connection import UrlOption, UserOption, connect

if TYPE_CHECKING:
    from inferscale_sdk import FactInput

app = typer.Typer(help="Add, list, search and delete one user's facts.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for other programs.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the fact.", show_default=False)]
TextArgument = Annotated[list[str], typer.Argument(metavar="TEXT...", help="One fact each.", show_default=False)]
SpeakerOption = Annotated[str | None, typer.Option("--speaker", help="Who said it.")]
TimeOption = Annotated[datetime | None, typer.Option("--time", help="When it was said, UTC.")]


@app.command()
def add(
    texts: TextArgument,
    user: UserOption,
    speaker: SpeakerOption = None,
    time: TimeOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Remember facts, each a sentence that stands on its own."""
    facts: list[FactInput] = [{"text": text, "speaker": speaker} for text in texts]
    timestamp = time.replace(tzinfo=UTC).timestamp() if time else None
    with connect(url) as client:
        outcomes = client.memories.add(user, facts=facts, timestamp=timestamp)
    show(outcomes, ("id", "status", "text", "reason"), as_json)
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)


@app.command(name="list")
def list_(
    user: UserOption,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many, oldest first.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List a user's facts, oldest first."""
    with connect(url) as client:
        show(islice(client.memories.list(user), limit), ("id", "timestamp", "speaker", "text"), as_json)


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.", show_default=False)],
    user: UserOption,
    k: Annotated[int | None, typer.Option("--k", min=1, help="At most so many, default the server's.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Find the facts nearest to a query, best first."""
    with connect(url) as client:
        show(client.memories.search(user, query, k=k), ("score", "id", "text"), as_json)


@app.command()
def get(fact_id: IdArgument, user: UserOption, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Show one fact."""
    with connect(url) as client:
        show([client.memories.get(fact_id, user=user)], ("id", "timestamp", "speaker", "text"), as_json)


@app.command()
def delete(fact_id: IdArgument, user: UserOption, as_json: JsonOption = False, url: UrlOption = None) -> None:
    """Forget one fact."""
    with connect(url) as client:
        client.memories.delete(fact_id, user=user)
    print(json.dumps({"id": fact_id, "deleted": True}) if as_json else f"deleted {fact_id}")


def show(rows: Iterable[Any], columns: tuple[str, ...], as_json: bool) -> None:
    """Print SDK results as a table of `columns`, or whole as JSON lines."""
    if as_json:
        for row in rows:
            print(row.model_dump_json())
        return
    table = Table(*(Column(name, overflow="fold") for name in columns))  # an id that is cut cannot be used
    for row in rows:
        table.add_row(*(Text(cell(getattr(row, column), column)) for column in columns))
    Console().print(table)


def cell(value: object, column: str) -> str:
    """One value for a person: times as UTC, scores with two digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
