"""Rows of results, for a person or for a program.

Knows: tables and JSON lines. Refuses to know: where the rows come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def show(rows: Iterable[Any], columns: tuple[str, ...], as_json: bool) -> None:
    """Print SDK results as a table of `columns`, or whole as JSON lines."""
    if as_json:
        for row in rows:
            print(row.model_dump_json())
        return
    table = Table(*(Column(name, overflow="fold") for name in columns))  # an id that is cut cannot be used
    for row in rows:
        table.add_row(*(Text(cell(getattr(row, column))) for column in columns))
    Console().print(table)


def cell(value: object) -> str:
    """One value for a person: times as UTC, scores with two digits, objects as JSON, nothing for None."""
    if value is None or value == {}:
        return ""
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M}"
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"{value:.2f}" if isinstance(value, float) else str(value)
