"""`inferscale bench load --infer N`: chats beside users whose turns the served model makes facts of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_server.cli.bench_setting import Bench, end, machine_of, show, write_json

if TYPE_CHECKING:
    from inferscale_server.bench.load import Load

READING = ("--extractor", "llm")
"""Options of a server whose own model makes facts, whichever that is."""

InferOption = Annotated[
    int,
    typer.Option(
        "--infer",
        metavar="N",
        min=0,
        help="Instead: chats while N other users add turns with infer: true. --base-url needs --extractor llm.",
    ),
]


def beside_infer(bench: Bench, load: Load, writers: int, json_file: Path | None, plot: Path | None) -> None:
    """Measure, show, write; exit 1 when the run is void."""
    from inferscale_server.bench.infer_load import infer_table, run_infer
    from inferscale_server.bench.plot import plot_load
    from inferscale_server.bench.tables import ratio_table
    from inferscale_server.bench.throughput_tables import load_table

    run = run_infer(bench.client, bench.conversation, load, writers, bench.tell)
    show(infer_table(run), load_table(run.cells), ratio_table(run.ratios))
    write_json(json_file, machine_of(bench.client), run)
    if plot is not None:
        plot_load(run.cells, plot)
    end(run.complaints)
