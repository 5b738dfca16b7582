"""`inferscale bench`: measurements that a release is judged by. Each starts a server of its own, unless given one."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient
    from inferscale_server.bench.comparator import Comparator
    from inferscale_server.bench.conversation import Conversation
    from inferscale_server.bench.mem0_memory import Mem0Memory
    from inferscale_server.demo.server import Report

ENCODED_FACTS = 250
"""How many facts `bench encode` takes when it is not told."""

# Lists, because typer copies them; nobody changes them.
FACTS = [5, 10, 20, 50]
CONCURRENCIES = [1, 4, 16, 32]
TOKENS = [8, 32]

app = typer.Typer(help="Measure a server; exit 1 when a measurement is void or wrong.", no_args_is_help=True)

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
Mem0Option = Annotated[
    bool,
    typer.Option("--mem0", help="Beside mem0 with Qdrant in local mode, on the same server (needs both packages)."),
]
RoundsOption = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Questions for each answer under way.")]
SecondsOption = Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="How long each load lasts.")]
UrlOption = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="Measure this server instead of starting one.")
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Model to serve, default the embedded one.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="Type of weights and KV.")]
VllmArgOption = Annotated[
    list[str] | None, typer.Option("--vllm-arg", metavar="FLAG", help="A flag for vLLM, may be given often.")
]


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
    mem0: Mem0Option = False,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """Time to first token against the number of facts: no memory, as text, as KV, and as mem0 does it.

    All times include the retrieval. --questions counts for each number of facts and mode. Exit 1 when the run is void:
    memory that was not injected, or was in the prefix cache.
    """
    from inferscale_server.bench import tables
    from inferscale_server.bench.plot import plot_ttft
    from inferscale_server.bench.ttft import run_ttft

    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench, _mem0(bench, mem0) as rival:
        run = run_ttft(bench.client, bench.conversation, questions, bench.tell, rival)
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
) -> None:
    """How fast one conversation's facts become KV. Exit 1 when some did not."""
    from inferscale_server.bench import tables
    from inferscale_server.bench.encoding import take_in
    from inferscale_server.bench.plot import plot_encoding
    from inferscale_server.bench.ttft import new_user

    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench:
        encoding = take_in(bench.client, new_user(), bench.conversation.facts, bench.tell)
        machine = _machine(bench.client)
    _print(tables.encoding_table(encoding))
    rates = {"facts_per_s": encoding.facts_per_s, "tokens_per_s": encoding.tokens_per_s}
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
def throughput(
    data: DataOption = None,
    limit: LimitOption = None,
    facts: Annotated[list[int], typer.Option("--facts", metavar="K", min=1, help="Facts recalled.")] = FACTS,
    concurrency: Annotated[
        list[int], typer.Option("--concurrency", metavar="N", min=1, help="Answers under way at any moment.")
    ] = CONCURRENCIES,
    tokens: Annotated[list[int], typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer.")] = TOKENS,
    rounds: RoundsOption = 2,
    mem0: Mem0Option = False,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """Whole answers a second with so many under way: memory as KV, as text with the prefix cache, as mem0 does it.

    Goes through all of --facts, --concurrency and --tokens (each may be given often): about an hour on two cores.
    Exit 1 when the run is void.
    """
    from inferscale_server.bench.comparator import ServerMemory
    from inferscale_server.bench.encoding import take_in
    from inferscale_server.bench.plot import plot_throughput
    from inferscale_server.bench.tables import encoding_table, ratio_table
    from inferscale_server.bench.throughput import Grid, run_throughput, summary
    from inferscale_server.bench.throughput_tables import throughput_table
    from inferscale_server.bench.ttft import new_user

    grid = Grid(tuple(facts), tuple(concurrency), tuple(tokens), rounds)
    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench, _mem0(bench, mem0) as rival:
        encoding = take_in(bench.client, user := new_user(), bench.conversation.facts, bench.tell)
        systems: list[Comparator] = [ServerMemory(user, "kv"), ServerMemory(user, "text"), *([rival] if rival else [])]
        questions = [question.text for question in bench.conversation.questions]
        run = summary(encoding, run_throughput(bench.client, systems, questions, grid, bench.tell))
        machine = _machine(bench.client)
    _print(encoding_table(encoding), throughput_table(run.cells), ratio_table(run.ratios))
    _write_json(json_file, {"machine": machine, **asdict(run)})
    if plot is not None:
        plot_throughput(run.cells, plot)
    _end(run.complaints)


@app.command()
def load(
    data: DataOption = None,
    limit: LimitOption = None,
    rate: Annotated[float, typer.Option("--rate", metavar="R", min=0.01, help="Requests a second.")] = 1.0,
    seconds: SecondsOption = 60.0,
    adds: Annotated[
        float, typer.Option("--adds", metavar="SHARE", min=0, max=0.9, help="Share that store a fact.")
    ] = 0.2,
    facts: Annotated[int, typer.Option("--facts", metavar="K", min=1, help="Facts recalled.")] = 20,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer.")] = 8,
    encoded_facts: Annotated[
        int, typer.Option("--encoded-facts", metavar="N", min=0, help="Encode so many beside chats; 0: leave that out.")
    ] = 1000,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """What chats wait in an open loop beside adds, with auto, kv and text; then idle and while facts are encoded."""
    from inferscale_server.bench.load import Load, run_load
    from inferscale_server.bench.plot import plot_load
    from inferscale_server.bench.tables import encoding_table, ratio_table
    from inferscale_server.bench.throughput_tables import load_table

    asked = Load(rate, seconds, adds, facts, tokens, encoded_facts)
    with _bench(data, limit, base_url, model, dtype, vllm_arg) as bench:
        run = run_load(bench.client, bench.conversation, asked, bench.tell)
        machine = _machine(bench.client)
    _print(*([encoding_table(run.encoding)] if run.encoding else []), load_table(run.cells), ratio_table(run.ratios))
    _write_json(json_file, {"machine": machine, **asdict(run)})
    if plot is not None:
        plot_load(run.cells, plot)
    _end(run.complaints)


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
    from inferscale_server.bench.server_process import ServerChoice, chosen_server

    conversation = _conversation(data).first(limit)
    choice = ServerChoice(base_url, model, dtype, tuple(vllm_arg or ()))
    with Console().status("starting") as status, chosen_server(choice, status.update) as client:
        yield Bench(client, conversation, status.update)


@contextmanager
def _mem0(bench: Bench, wanted: bool) -> Iterator[Mem0Memory | None]:
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
