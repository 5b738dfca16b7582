"""Rows of results, for a person or for a program.

Knows: tables and JSON lines. Refuses to know: where the rows come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

ID = "id"
LEFT_FOR_TEXT = 30
"""Columns of the terminal beside an id; with a longer id the table is wider than the screen."""


def show(rows: Iterable[Any], columns: tuple[str, ...], as_json: bool, empty: str = "") -> None:
    """Print SDK results as a table of `columns`, those without any value left out; or whole as JSON lines.

    A person is told `empty` where there are no rows.
    """
    if as_json:
        for row in rows:
            print(row.model_dump_json())
        return
    cells = [[cell(getattr(row, column)) for column in columns] for row in rows]
    if not cells:
        print(empty)
        return
    shown = [at for at in range(len(columns)) if any(row[at] for row in cells)]
    longest_id = max((len(row[columns.index(ID)]) for row in cells), default=0) if ID in columns else 0
    table = Table(*(_column(columns[at], longest_id) for at in shown))
    for row in cells:
        table.add_row(*(Text(row[at]) for at in shown))
    Console(width=max(Console().width, longest_id + LEFT_FOR_TEXT)).print(table)


def show_pairs(name: str, figure: str, pairs: Mapping[str, str]) -> None:
    """Print a table of two columns, the second one of figures."""
    table = Table(name, Column(figure, justify="right"))
    for pair in pairs.items():
        table.add_row(*map(Text, pair))
    Console().print(table)


def counted(number: int, what: str) -> str:
    """The number with its noun: `1 fact`, `2 facts`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _column(name: str, longest_id: int) -> Column:
    """An id stands on one line, as it is copied; the others are folded into the room that is left."""
    if name == ID:
        return Column(name, no_wrap=True, min_width=longest_id)
    return Column(name, overflow="fold")


def cell(value: object) -> str:
    """One value for a person: times as UTC, scores with two digits, objects as JSON, nothing for None."""
    if value is None or value == {}:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.2f}" if isinstance(value, float) else str(value)
