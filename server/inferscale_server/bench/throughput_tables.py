"""What `bench throughput` and `bench load` print. Pure: values in, rich tables out."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from inferscale_server.bench.load_cell import LoadCell
from inferscale_server.bench.throughput_cell import ThroughputCell, over_others


def throughput_table(cells: Sequence[ThroughputCell]) -> Table:
    """One row a cell; the last column is how many times as many answers kv gives in the same setting."""
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
    table = Table(*heads, "kv is", title="Throughput, closed loop, over HTTP")
    for cell in cells:
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
        )
    return table


def load_table(cells: Sequence[LoadCell]) -> Table:
    """One row a load."""
    heads = ("load", "chats", "first token: median ms", "p99 ms", "whole answer: median ms", "p99 ms", "served as")
    table = Table(*heads, title="Chats in an open loop, over HTTP")
    for cell in cells:
        served = ", ".join(f"{mode} {count}" for mode, count in sorted(cell.served.items()))
        times = (cell.first_token_ms, cell.first_token_p99_ms, cell.latency_ms, cell.latency_p99_ms)
        table.add_row(cell.load, str(cell.chats), *(f"{ms:.0f}" for ms in times), served)
    return table
