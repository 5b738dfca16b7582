"""`inferscale bench`: measurements that a release is judged by. Each starts a server of its own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Measure a server of the embedded model.", no_args_is_help=True)

LimitOption = Annotated[int, typer.Option("--limit", min=1, max=12, help="Questions for each number of facts.")]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows there.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw them there (png, svg, pdf).")]


@app.callback()
def bench() -> None:
    """Keeps `ttft` a subcommand while it is the only one."""


@app.command()
def ttft(limit: LimitOption = 5, json_file: JsonOption = None, plot: PlotOption = None) -> None:
    """Time to the first token against the number of facts, as text and as KV, on the sample memories."""
    from inferscale_server.demo.report import write_plot
    from inferscale_server.demo.show import run_ttft

    rows = run_ttft(limit)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    if plot is not None:
        write_plot(rows, plot)
