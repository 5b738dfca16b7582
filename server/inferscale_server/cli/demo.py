"""`inferscale demo`: the whole product once, from start to stop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where demo.html and ttft.png go.")]
VllmArgOption = Annotated[
    list[str] | None, typer.Option("--vllm-arg", metavar="FLAG", help="A flag for vLLM, may be given often.")
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="demo")(demo)


def demo(out: OutOption = Path("demo-out"), vllm_arg: VllmArgOption = None) -> None:
    """Start a server, load two sample memories, ask questions in every mode, compare, stop the server.

    Exit 0 when memory made the difference that it should, else 1.
    """
    from inferscale_server.demo.show import run

    if not run(out, tuple(vllm_arg or ())):
        raise typer.Exit(1)
