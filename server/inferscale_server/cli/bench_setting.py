"""What the commands of `inferscale bench` share: their options, the server that they measure, how figures are told.

Refuses to know what is measured.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from inferscale_server.cli.connection import checked_url
from inferscale_server.demo.progress import Progress

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient
    from inferscale_server.bench.conversation import Conversation
    from inferscale_server.bench.mem0_memory import Mem0Memory
    from inferscale_server.demo.server import Report

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def writable(file: Path | None) -> Path | None:
    """The file, if it can be written, and its folder made: hours later is too late to find out that it cannot."""
    if file is None:
        return None
    folder = file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"no folder {str(folder)!r} can be made: {error.strerror}") from error
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{str(file)!r} cannot be written")
    return file


def drawable(file: Path | None) -> Path | None:
    """`writable`, and of a kind that is drawn."""
    if file is not None and file.suffix.lower() not in PLOT_SUFFIXES:
        raise typer.BadParameter(f"{str(file)!r} does not end in {', '.join(PLOT_SUFFIXES)}")
    return writable(file)


def finite(number: float) -> float:
    """The number; the parser takes "inf" for one, and "nan" for one within every bound."""
    if not math.isfinite(number):
        raise typer.BadParameter(f"{number} is no number")
    return number


def with_mem0(wanted: bool) -> bool:
    """Is it wanted? Both packages are looked for, and neither is imported."""
    missing = [name for name in ("mem0", "qdrant_client") if wanted and find_spec(name) is None]
    if missing:
        raise typer.BadParameter(f"{missing[0]} is not installed: pip install mem0ai qdrant-client")
    return wanted


DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="LoCoMo conversations, one JSON each. Without it: the sample memories."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Load only the conversation's first N facts.")
]
QuestionsOption = Annotated[int, typer.Option("--questions", metavar="N", min=1, help="How many questions to ask.")]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.", callback=writable)
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw them there (png, svg, pdf).", callback=drawable)
]
BreakdownOption = Annotated[bool, typer.Option("--breakdown", help="Also say where the time goes; a minute more.")]
Mem0Option = Annotated[
    bool,
    typer.Option(
        "--mem0",
        help="Beside mem0 with Qdrant in local mode, on the same server (needs both packages).",
        callback=with_mem0,
    ),
]
RoundsOption = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Questions for each answer under way.")]
SecondsOption = Annotated[
    float, typer.Option("--seconds", metavar="S", min=0.1, help="How long each mode's load lasts.", callback=finite)
]
RecalledOption = Annotated[int, typer.Option("--facts", metavar="K", min=1, help="Facts recalled for each question.")]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--base-url", metavar="URL", help="Measure this server instead of starting one.", callback=checked_url
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Model to serve, default the embedded one.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="Type of weights and KV.")]
VllmArgOption = Annotated[
    list[str] | None, typer.Option("--vllm-arg", metavar="FLAG", help="A flag for vLLM, may be given often.")
]
OneByOneOption = Annotated[bool, typer.Option("--one-by-one", help="Wait for each fact's KV before the next is added.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """A server to be measured, and where progress goes."""

    client: InferScaleClient
    tell: Report


@dataclass(frozen=True, slots=True)
class Bench:
    """One benchmark under way: whom to ask, what about, where progress goes."""

    client: InferScaleClient
    conversation: Conversation
    tell: Report


@contextmanager
def opened_bench(
    data: Path | None,
    limit: int | None,
    base_url: str | None,
    model: str | None,
    dtype: str,
    vllm_arg: Sequence[str] | None,
    recalled: Sequence[int] = (),
    options: Sequence[str] = (),
    asked_of: Callable[[Conversation], int] = lambda conversation: 1,
) -> Iterator[Bench]:
    """The conversation and a server for it; it must have as many facts as are `recalled` at once. `options` are more
    options of a server of our own; `asked_of`: how many different questions are needed.

    Raises ConfigError before anything is started.
    """
    from inferscale_server.bench.probe import check_reached, different_questions

    conversation = _conversation(data).first(limit)
    check_reached(recalled, len(conversation.facts))
    different_questions([question.text for question in conversation.questions], asked_of(conversation))
    with opened_client(base_url, model, dtype, vllm_arg, options) as asked:
        yield Bench(asked.client, conversation, asked.tell)


@contextmanager
def opened_client(
    base_url: str | None,
    model: str | None,
    dtype: str,
    vllm_arg: Sequence[str] | None,
    options: Sequence[str] = (),
) -> Iterator[Asked]:
    """A server to measure; `options` are more options of one of our own."""
    from inferscale_server.bench.server_process import ServerChoice, chosen_server

    choice = ServerChoice(base_url, model, dtype, tuple(vllm_arg or ()), tuple(options))
    with Progress(Console(stderr=True)) as progress, chosen_server(choice, progress.tell) as client:
        yield Asked(client, progress.tell)


@contextmanager
def beside_mem0(bench: Bench, wanted: bool) -> Iterator[Mem0Memory | None]:
    """mem0 with the conversation's facts, in a folder that is gone on leaving; None when not wanted."""
    from inferscale_server.bench.mem0_memory import open_mem0

    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="inferscale-mem0-") as folder:
        rival = open_mem0(bench.client, Path(folder))
        try:
            rival.take_in(bench.conversation.facts, bench.tell)
            yield rival
        finally:
            rival.close()


def _conversation(data: Path | None) -> Conversation:
    from inferscale_server.bench.conversation import fullest, sample_conversation
    from inferscale_server.bench.locomo import read_conversations
    from inferscale_server.demo.conversations import load_memories

    return sample_conversation(load_memories()) if data is None else fullest(read_conversations(data))


def machine_of(client: InferScaleClient) -> dict[str, object]:
    """What the figures depend on: the server's words about its model, and this machine."""
    from inferscale_server.bench.machine import this_machine

    status = client.status()
    kv = status.raw.get("kv")
    backend = kv.get("backend") if isinstance(kv, dict) else None
    return {
        "model": status.model,
        "recipe": status.raw.get("recipe"),
        "embedder": status.raw.get("embedder"),
        "attention": backend,
        **asdict(this_machine()),
    }


def show(*shown: object) -> None:
    """Print tables."""
    Console().print(*shown)


def write_json(file: Path | None, machine: object, found: object) -> None:
    """Write all figures of what was found (a run, or parts of one by name) and the machine, if a file was named."""
    from inferscale_server.bench.figures import figures_of

    if file is None:
        return
    figures = figures_of(found)
    assert isinstance(figures, dict), f"{type(found).__name__} has no named figures"
    told = {"machine": figures_of(machine), **figures}
    file.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", "utf-8")


def end(complaints: Sequence[str]) -> None:
    """Print what is wrong and exit 1, or return."""
    for line in complaints:
        Console(stderr=True).print(f"[red]inferscale bench: {escape(line)}[/red]", soft_wrap=True)
    if complaints:
        raise typer.Exit(1)
