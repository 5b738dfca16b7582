"""What `bench throughput` and `bench load` print. Pure: values in, rich tables out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from inferscale_server.bench.load_cell import LoadCell
from inferscale_server.bench.lost_column import lost_column
from inferscale_server.bench.throughput_cell import ThroughputCell, over_others


def throughput_table(cells: Sequence[ThroughputCell]) -> Table:
    """One row a cell; `kv is` says how many times as many answers kv gives in the same setting."""
    heads = (
        "facts",
        "at once",
        "tokens",
        "memory",
        "answers/s",
        "median ms",
        "p99 ms",
        "answers",
        "computed",
        "injected",
    )
    lost = lost_column([cell.failed for cell in cells])
    table = Table(*heads, "kv is", *lost.head, title="Throughput, closed loop, over HTTP")
    for cell, failed in zip(cells, lost.rows, strict=True):
        ratio = over_others(cells, cell.setting).get(cell.system)
        table.add_row(
            str(cell.k),
            str(cell.concurrency),
            str(cell.tokens),
            cell.system,
            f"{cell.answers_per_s:.2f}",
            f"{cell.latency_ms:.0f}",
            f"{cell.latency_p99_ms:.0f}",
            str(cell.answers),
            f"{cell.prefilled_tokens:.0f}",
            f"{cell.injected_tokens:.0f}",
            "" if ratio is None else f"{ratio:.1f}x",
            *failed,
        )
    return table


def load_table(cells: Sequence[LoadCell]) -> Table:
    """One row a load."""
    heads = ("load", "chats", "first token: median ms", "p99 ms", "whole answer: median ms", "p99 ms", "served as")
    lost = lost_column([cell.failed for cell in cells])
    table = Table(*heads, *lost.head, title="Chats in an open loop, over HTTP")
    for cell, failed in zip(cells, lost.rows, strict=True):
        served = ", ".join(f"{mode} {count}" for mode, count in sorted(cell.served.items()))
        times = (cell.first_token_ms, cell.first_token_p99_ms, cell.latency_ms, cell.latency_p99_ms)
        table.add_row(cell.load, str(cell.chats), *(f"{ms:.0f}" for ms in times), served, *failed)
    return table
