"""The `inferscale` command: which subcommands there are, and what an expected error looks like on a terminal.

Imports neither torch nor vLLM: a command brings in what it needs when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from inferscale_sdk import __version__
from inferscale_server.cli import (
    backup,
    bench,
    chat,
    demo,
    doctor,
    gc,
    keys,
    look,
    mcp,
    memories,
    reindex,
    restore,
    serve,
    verify,
)
from inferscale_server.cli.command import CommandLine
from inferscale_server.errors import InferScaleError

EXIT_EXPECTED = 2
"""What a wrong option, a missing model, an unreachable server and the like exit with."""

app = CommandLine(
    name="inferscale",
    help="Long-term memory for LLM agents, served as KV cache inside stock vLLM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
VersionOption = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")]


@app.callback(invoke_without_command=True)
def inferscale(version: VersionOption = False) -> None:
    """Long-term memory for LLM agents, served as KV cache inside stock vLLM."""
    if version:
        print(f"inferscale {__version__}")
        raise typer.Exit


serve.register(app)
chat.register(app)
mcp.register(app)
app.add_typer(memories.app, name="memories")
app.add_typer(keys.app, name="keys")
look.register(app)
demo.register(app)
doctor.register(app)
verify.register(app)
gc.register(app)
backup.register(app)
restore.register(app)
reindex.register(app)
app.add_typer(bench.app, name="bench")


@dataclass(frozen=True, slots=True)
class Argv:
    """A command line in two parts: ours, and the vLLM flags after `--`."""

    ours: tuple[str, ...]
    vllm: tuple[str, ...]


def split_argv(argv: Sequence[str]) -> Argv:
    """Everything after the first `--` of the commands that start vLLM with their user's flags belongs to vLLM; others
    use `--` in the usual way."""
    if argv[:1] in (["serve"], ["doctor"]) and "--" in argv:
        cut = argv.index("--")
        return Argv(tuple(argv[:cut]), tuple(argv[cut + 1 :]))
    return Argv(tuple(argv), ())


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit: 0 done, 1 checked and found wanting, 2 an expected error, 130 interrupted."""
    parts = split_argv(list(sys.argv[1:] if argv is None else argv))
    try:
        app(args=list(parts.ours), prog_name="inferscale", obj=parts.vllm)
    except _expected_errors() as error:
        print(f"inferscale: {one_line(error)}", file=sys.stderr)
        sys.exit(EXIT_EXPECTED)
    except KeyboardInterrupt:
        sys.exit(130)


def _expected_errors() -> tuple[type[Exception], ...]:
    from inferscale_sdk import InferScaleError as ClientError

    return (InferScaleError, ClientError)


def one_line(error: Exception) -> str:
    """The error's message with line breaks folded."""
    return " ".join(str(error).split())
