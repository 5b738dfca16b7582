"""`inferscale bench index`: the index backends over numbers of vectors. Needs no server."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
LEAST_RECALL = 0.98


def index(
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=100, help="At most N vectors.")] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the vectors.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw them there (png, svg, pdf).")
    ] = None,
) -> None:
    """Recall, latency, bytes and build time of each index backend. Exit 1 when a graph finds less than 98 in 100."""
    from inferscale_server.bench.index_speed import here, measure

    sizes = [size for size in SIZES if size <= limit]
    table = Table("vectors", "backend", "recall", "median ms", "p99 ms", "built in s", "MiB", title="Index backends")
    rows = []
    with Console().status("starting") as status:
        for row in measure(sizes, here(), status.update, seed):
            rows.append(row)
            cells = (f"{row.recall:.3f}", f"{row.median_ms:.2f}", f"{row.p99_ms:.2f}", f"{row.build_s:.2f}")
            table.add_row(f"{row.vectors:,}", row.backend, *cells, f"{row.bytes / 2**20:.1f}")
    Console().print(table)
    if json_file is not None:
        from inferscale_server.bench.machine import this_machine

        told = {"machine": asdict(this_machine()), "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(told, indent=2), "utf-8")
    if plot is not None:
        from inferscale_server.bench.plot import plot_index

        plot_index(rows, plot)
    if any(row.recall < LEAST_RECALL for row in rows):
        raise typer.Exit(1)
