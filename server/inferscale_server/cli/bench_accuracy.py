"""`inferscale bench accuracy`: from the command line to its exit code."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from inferscale_server.demo.progress import Progress as Lines

if TYPE_CHECKING:
    from inferscale_server.bench.accuracy.case import Haystack
    from inferscale_server.bench.accuracy.judge import Judge
    from inferscale_server.bench.accuracy.measure import Progress
    from inferscale_server.bench.accuracy.variant import Variant

DEFAULT_KS = (5, 20, 50)
AS_SERVED = "as served"

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Folder or file: LoCoMo or LongMemEval JSON, or JSONL of question, answer, facts. Without it: the sample.",
    ),
]
RecipeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        metavar="RECIPE",
        help="A recipe with more options of serve, such as 'primer --tail-tokens 64'. May be given often.",
    ),
]
KOption = Annotated[list[int] | None, typer.Option("--k", min=1, help="Facts recalled; may be given often: 5, 20, 50.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Keep finished rows there; a rerun continues.")
]
AnswersOption = Annotated[bool, typer.Option("--answers", help="Also generate answers and give their F1; slow.")]
JudgeUrlOption = Annotated[
    str | None, typer.Option("--judge-url", metavar="URL", help="OpenAI-compatible API of a judge; implies --answers.")
]
JudgeKeyOption = Annotated[
    str | None, typer.Option("--judge-key", envvar="OPENAI_API_KEY", show_envvar=True, help="The judge's API key.")
]


def judge_of(url: str | None, model: str | None, key: str | None) -> Judge | None:
    """The judge that was asked for. Raises ConfigError when its address and its name do not come together."""
    from inferscale_server.bench.accuracy.judge import Judge
    from inferscale_server.errors import ConfigError

    if (url is None) != (model is None):
        raise ConfigError("option 'judge_url': a judge needs both --judge-url and --judge-model")
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"option 'judge_url': {url!r} does not begin with http:// or https://")
    return None if url is None or model is None else Judge(url, model, key)


def haystacks_of(data: Path | None) -> list[Haystack]:
    """What is asked. Raises ConfigError."""
    from inferscale_server.bench.accuracy.haystacks import read_haystacks, sample_haystack
    from inferscale_server.demo.conversations import load_memories

    return [sample_haystack(load_memories())] if data is None else read_haystacks(data)


def variants_of(recipes: Sequence[str] | None, base_url: str | None) -> list[Variant]:
    """The variants to serve; a server that runs already has its own. Raises ConfigError."""
    from inferscale_server.bench.accuracy.variant import Variant, parse_variant
    from inferscale_server.errors import ConfigError

    if base_url is None:
        return [parse_variant(written) for written in recipes or ["primer"]]
    if recipes:
        raise ConfigError("option 'recipe': a server that runs already has its own recipe")
    return [Variant(AS_SERVED, ())]


@contextmanager
def shown_progress(total: int) -> Iterator[Progress]:
    """What happens, on standard error: a bar with how many measurements are done, or a line a stage off a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from inferscale_server.bench.accuracy.measure import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        with Lines(console) as lines:
            yield Progress(tell=lines.tell, step=lambda count: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield Progress(
            tell=lambda text: bar.update(task, description=text), step=lambda count: bar.advance(task, count)
        )


@contextmanager
def out_folder(out: Path | None) -> Iterator[Path]:
    """Where rows go: what was asked for, else a folder that is thrown away."""
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="inferscale-accuracy-") as folder:
        yield Path(folder)
