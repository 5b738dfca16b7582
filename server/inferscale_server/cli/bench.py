"""`inferscale bench`: measurements that a release is judged by. Each starts a server of its own, unless given one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from inferscale_server.cli import bench_accuracy, bench_index
from inferscale_server.cli.folder import KeyOption

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient
    from inferscale_server.bench.conversation import Conversation
    from inferscale_server.demo.server import Report

ENCODED_FACTS = 250
"""How many facts `bench encode` takes when it is not told."""
GUESSED_FACTS = 600
"""How many facts `bench isolation` guesses: the standard error of its AUC is then 0.017."""

app = typer.Typer(help="Measure a server; exit 1 when a measurement is void or wrong.", no_args_is_help=True)
app.command()(bench_index.index)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="LoCoMo conversations, one JSON each. Without it: the sample memories."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Load only the conversation's first N facts.")
]
QuestionsOption = Annotated[int, typer.Option("--questions", metavar="N", min=1, help="How many questions to ask.")]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there.")]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw them there (png, svg, pdf).")]
BreakdownOption = Annotated[bool, typer.Option("--breakdown", help="Also say where the time goes.")]
UrlOption = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Measure this server instead of starting one.")
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


@app.command()
def ttft(
    data: DataOption = None,
    limit: LimitOption = None,
    questions: QuestionsOption = 20,
    breakdown: BreakdownOption = False,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """Time to first token against the number of facts: no memory, as text, as KV.

    --questions counts for each number of facts and mode. Exit 1 when the run is void: memory that was not injected, or
    was in the prefix cache.
    """
    from inferscale_server.bench import tables
    from inferscale_server.bench.plot import plot_ttft
    from inferscale_server.bench.ttft import run_ttft

    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench:
        run = run_ttft(bench.client, bench.conversation, questions, bench.tell)
        machine = _machine(bench.client)
    _print(tables.encoding_table(run.encoding), tables.ttft_table(run.cells), tables.ratio_table(run.ratios))
    if breakdown:
        _print(tables.breakdown_table(run.cells))
    _write_json(json_file, {"machine": machine, **asdict(run)})
    if plot is not None:
        plot_ttft(run.cells, plot)
    _end(run.complaints)


@app.command()
def encode(
    data: DataOption = None,
    limit: LimitOption = ENCODED_FACTS,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
    one_by_one: OneByOneOption = False,
) -> None:
    """How fast one conversation's facts become KV. Exit 1 when some did not."""
    from inferscale_server.bench import tables
    from inferscale_server.bench.encoding import take_in
    from inferscale_server.bench.plot import plot_encoding
    from inferscale_server.bench.ttft import new_user

    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench:
        encoding = take_in(bench.client, new_user(), bench.conversation.facts, bench.tell, one_by_one)
        machine = _machine(bench.client)
    _print(tables.encoding_table(encoding))
    rates = {name: getattr(encoding, name) for name in ("facts_per_s", "tokens_per_s", "cost")}
    _write_json(json_file, {"machine": machine, **asdict(encoding), **rates})
    if plot is not None:
        plot_encoding(encoding.marks, plot)
    _end(encoding.complaints)


@app.command()
def equivalence(
    data: DataOption = None,
    limit: LimitOption = None,
    questions: QuestionsOption = 20,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "float32",
    vllm_arg: VllmArgOption = None,
) -> None:
    """One chunk with the whole memory: do KV and text give the same tokens and probabilities? Exit 1 if not."""
    from inferscale_server.bench import agreement, tables
    from inferscale_server.bench.equivalence import run_equivalence
    from inferscale_server.bench.plot import plot_agreement

    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench:
        found = run_equivalence(bench.client, bench.conversation, questions, bench.tell)
        machine = _machine(bench.client)
    _print(tables.agreement_table(found))
    _write_json(json_file, {"machine": machine, "agreements": [asdict(one) for one in found]})
    if plot is not None:
        plot_agreement(found, plot)
    _end(agreement.complaints(found))


@app.command()
def isolation(
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many facts to guess.")] = GUESSED_FACTS,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """Does the time to first token tell one user what another's memory says? Exit 1 if so, or if it tells nothing."""
    from inferscale_server.bench import tables
    from inferscale_server.bench.isolation import run_isolation
    from inferscale_server.bench.plot import plot_isolation

    with _client(base_url, model, dtype, vllm_arg) as asked:
        run = run_isolation(asked.client, limit, asked.tell)
        machine = _machine(asked.client)
    _print(tables.isolation_table(run))
    _write_json(json_file, {"machine": machine, **asdict(run)})
    if plot is not None:
        plot_isolation(run, plot)
    _end(run.complaints)


@app.command()
def accuracy(
    data: bench_accuracy.DataOption = None,
    recipe: bench_accuracy.RecipeOption = None,
    k: bench_accuracy.KOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Ask only N questions, evenly spread.")
    ] = None,
    out: bench_accuracy.OutOption = None,
    answers: bench_accuracy.AnswersOption = False,
    judge_url: bench_accuracy.JudgeUrlOption = None,
    judge_model: Annotated[str | None, typer.Option("--judge-model", help="The judge's name for its API.")] = None,
    judge_key: bench_accuracy.JudgeKeyOption = None,
    top: Annotated[int, typer.Option("--top", min=2, max=1000, help="Likeliest tokens compared for KL.")] = 100,
    threads: Annotated[int, typer.Option("--threads", min=1, max=64, help="Questions asked at once.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of the intervals' resampling.")] = 0,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    api_key: KeyOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """How much of what memory as text gains memory as KV keeps: the gold answers' likelihood, KL, answers.

    Exit 1 when a question could not be measured; the next run with the same --out tries it again.
    """
    from inferscale_server.bench.accuracy import report
    from inferscale_server.bench.accuracy.case import spread
    from inferscale_server.bench.accuracy.cell import cells, promises, trios
    from inferscale_server.bench.accuracy.gap import gaps
    from inferscale_server.bench.accuracy.ledger import Ledger
    from inferscale_server.bench.accuracy.run import Plan, measure_all, missing_count, settings_of
    from inferscale_server.bench.server_process import ServerChoice

    variants, everything = bench_accuracy.variants_of(recipe, base_url), bench_accuracy.haystacks_of(data)
    judge = bench_accuracy.judge_of(judge_url, judge_model, judge_key)
    plan = Plan(tuple(dict.fromkeys(k or bench_accuracy.DEFAULT_KS)), top, threads, answers or judge is not None, judge)
    choice = ServerChoice(base_url, model, dtype, tuple(vllm_arg or ()))
    asked = spread(everything, limit)
    with bench_accuracy.out_folder(out) as folder:
        settings = settings_of(plan, choice, everything)
        ledger = Ledger(folder, settings)
        with bench_accuracy.shown_progress(missing_count(plan, variants, asked, ledger)) as progress:
            failed = measure_all(plan, choice, variants, asked, ledger, progress, api_key)
        found = trios(ledger, (case.key for haystack in asked for case in haystack.cases))
    figures, apart = cells(found, seed), gaps(found, seed)
    shown = [report.accuracy_table(figures), report.answers_table(figures), report.gaps_table(apart)]
    _print(*(table for table in [*shown, report.promises_table(promises(figures))] if table is not None))
    rows = [row.figures() for trio in found for row in trio.rows]
    told = {"cells": [asdict(cell) for cell in figures], "gaps": [asdict(gap) for gap in apart]}
    _write_json(json_file, {"settings": settings, **told, "rows": rows, "failed": failed})
    if plot is not None and figures:
        report.plot_accuracy(figures, plot)
    _end(failed)


@app.command()
def footprint(
    facts: Annotated[int, typer.Option("--facts", metavar="N", min=1, help="Facts that each user has.")] = 100,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of a fact.")] = 30,
    json_file: JsonOption = None,
) -> None:
    """Bytes of KV a token, fact and user for common models, and users per GPU. Computed: starts nothing."""
    from inferscale_server.bench.footprint import Load, all_sizes, markdown

    rows = all_sizes(Load(facts, tokens))
    print(markdown(rows))
    _write_json(json_file, [asdict(row) for row in rows])


@contextmanager
def _bench(
    data: Path | None,
    limit: int | None,
    base_url: str | None,
    model: str | None,
    dtype: str,
    vllm_arg: Sequence[str] | None,
) -> Iterator[Bench]:
    """The conversation and a server for it. Raises ConfigError before anything is started."""
    conversation = _conversation(data).first(limit)
    with _client(base_url, model, dtype, vllm_arg) as asked:
        yield Bench(asked.client, conversation, asked.tell)


@contextmanager
def _client(base_url: str | None, model: str | None, dtype: str, vllm_arg: Sequence[str] | None) -> Iterator[Asked]:
    """A server to measure."""
    from inferscale_server.bench.server_process import ServerChoice, chosen_server

    choice = ServerChoice(base_url, model, dtype, tuple(vllm_arg or ()))
    with Console().status("starting") as status, chosen_server(choice, status.update) as client:
        yield Asked(client, status.update)


def _conversation(data: Path | None) -> Conversation:
    from inferscale_server.bench.conversation import fullest, sample_conversation
    from inferscale_server.bench.locomo import read_conversations
    from inferscale_server.demo.conversations import load_memories

    return sample_conversation(load_memories()) if data is None else fullest(read_conversations(data))


def _machine(client: InferScaleClient) -> dict[str, object]:
    """What the figures depend on: the server's words about its model, and this machine's cores."""
    status = client.status()
    kv = status.raw.get("kv")
    backend = kv.get("backend") if isinstance(kv, dict) else None
    return {
        "model": status.model,
        "recipe": status.raw.get("recipe"),
        "embedder": status.raw.get("embedder"),
        "attention": backend,
        "cpu_cores": os.cpu_count(),
    }


def _print(*shown: object) -> None:
    Console().print(*shown)


def _write_json(file: Path | None, figures: object) -> None:
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def _end(complaints: Sequence[str]) -> None:
    """Print what is wrong and exit 1, or return."""
    for line in complaints:
        Console(stderr=True).print(f"[red]inferscale bench: {escape(line)}[/red]", soft_wrap=True)
    if complaints:
        raise typer.Exit(1)
