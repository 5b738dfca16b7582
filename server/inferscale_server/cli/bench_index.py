"""`inferscale bench index`: the index backends over numbers of vectors. Needs no server."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from inferscale_server.cli.bench_setting import JsonOption, PlotOption, write_json

SIZES = (100, 1_000, 10_000, 20_000, 100_000, 1_000_000)
"""Powers of ten, and where `--index auto` begins to build a graph."""
LEAST_RECALL = 0.98


def index(
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=100, help="At most N vectors, up to 1,000,000.")
    ] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the vectors.")] = 0,
    json_file: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Recall, latency, bytes and build time of each index backend, as it is served. Exit 1 when one finds less than 98
    of 100."""
    from inferscale_server.bench.index_speed import here, measure

    sizes = [size for size in SIZES if size <= limit]
    times = ("median ms", "p99 ms", "CPU ms", "build s", "CPU s")
    table = Table("vectors", "backend", "recall", *times, "MiB", title="Index backends")
    rows = []
    with Console().status("starting") as status:
        for row in measure(sizes, here(), status.update, seed):
            rows.append(row)
            cells = (row.median_ms, row.p99_ms, row.cpu_ms, row.build_s, row.build_cpu_s, row.bytes / 2**20)
            table.add_row(f"{row.vectors:,}", row.backend, f"{row.recall:.3f}", *(f"{cell:,.2f}" for cell in cells))
    Console().print(table)
    if json_file is not None:
        from inferscale_server.bench.machine import this_machine

        write_json(json_file, this_machine(), {"rows": rows})
    if plot is not None:
        from inferscale_server.bench.plot import plot_index

        plot_index(rows, plot)
    if any(row.recall < LEAST_RECALL for row in rows):
        raise typer.Exit(1)
