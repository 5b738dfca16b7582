"""`inferscale bench throughput` and `bench load`: many chats at once, in a closed and in an open loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_server.cli.bench_infer import READING, InferOption, beside_infer
from inferscale_server.cli.bench_setting import (
    DataOption,
    DtypeOption,
    JsonOption,
    LimitOption,
    Mem0Option,
    ModelOption,
    PlotOption,
    RecalledOption,
    RoundsOption,
    SecondsOption,
    UrlOption,
    VllmArgOption,
    beside_mem0,
    end,
    finite,
    machine_of,
    opened_bench,
    show,
    write_json,
)

if TYPE_CHECKING:
    from inferscale_server.bench.comparator import Comparator

# Lists, because typer copies them; nobody changes them.
CONCURRENCIES = [1, 4, 16, 32]
TOKENS = [8, 32]


def throughput(
    data: DataOption = None,
    limit: LimitOption = None,
    facts: Annotated[
        list[int] | None,
        typer.Option("--facts", metavar="K", min=1, help="Facts recalled, default 5, 10, 20, 50 of so many."),
    ] = None,
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
    """Whole answers a second with so many under way: no memory, as text with the prefix cache, as KV, as mem0 does it.

    Goes through all of --facts, --concurrency and --tokens (each may be given often): about an hour on two cores.
    Exit 1 when the run is void.
    """
    from inferscale_server.bench.comparator import ServerMemory
    from inferscale_server.bench.encoding import take_in
    from inferscale_server.bench.losses import Losses
    from inferscale_server.bench.plot import plot_throughput
    from inferscale_server.bench.probe import FACT_COUNTS, MODES, possible_fact_counts
    from inferscale_server.bench.tables import encoding_table, ratio_table
    from inferscale_server.bench.throughput import Grid, run_throughput, summary
    from inferscale_server.bench.throughput_tables import throughput_table
    from inferscale_server.bench.ttft import new_user

    reached = facts or FACT_COUNTS[:1]
    with (
        opened_bench(data, limit, base_url, model, dtype, vllm_arg, reached) as bench,
        beside_mem0(bench, mem0) as rival,
    ):
        ks = facts or possible_fact_counts(len(bench.conversation.facts))
        grid = Grid(tuple(ks), tuple(concurrency), tuple(tokens), rounds)
        encoding = take_in(bench.client, user := new_user(), bench.conversation.facts, bench.tell)
        systems: list[Comparator] = [*(ServerMemory(user, mode) for mode in MODES), *([rival] if rival else [])]
        questions, losses = [question.text for question in bench.conversation.questions], Losses(max(concurrency))
        cells = run_throughput(bench.client, systems, questions, grid, bench.tell, losses)
        run = summary(encoding, cells, losses)
        machine = machine_of(bench.client)
    show(encoding_table(encoding), throughput_table(run.cells), ratio_table(run.ratios))
    write_json(json_file, machine, run)
    if plot is not None:
        plot_throughput(run.cells, plot)
    end(run.complaints)


def load(
    data: DataOption = None,
    limit: LimitOption = None,
    rate: Annotated[
        float, typer.Option("--rate", metavar="R", min=0.01, help="Requests a second.", callback=finite)
    ] = 1.0,
    seconds: SecondsOption = 60.0,
    adds: Annotated[
        float,
        typer.Option("--adds", metavar="SHARE", min=0, max=0.9, help="Share that store a fact.", callback=finite),
    ] = 0.2,
    facts: RecalledOption = 20,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer.")] = 8,
    encoded_facts: Annotated[
        int, typer.Option("--encoded-facts", metavar="N", min=0, help="Encode so many beside chats; 0: leave that out.")
    ] = 1000,
    mem0: Mem0Option = False,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    infer: InferOption = 0,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """What chats wait in an open loop beside adds, in each mode and as mem0 does it; then while facts are encoded.

    Exit 1 when the run is void: an answer of a fixed mode was served otherwise, no chat came, facts were not encoded.
    """
    from inferscale_server.bench.load import Load, run_load
    from inferscale_server.bench.plot import plot_load
    from inferscale_server.bench.tables import encoding_table, ratio_table
    from inferscale_server.bench.throughput_tables import load_table

    if infer:
        with opened_bench(data, limit, base_url, model, dtype, vllm_arg, options=READING) as bench:
            beside_infer(bench, Load(rate, seconds, 0.0, facts, tokens, 0), infer, json_file, plot)
        return
    asked = Load(rate, seconds, adds, facts, tokens, encoded_facts)
    with (
        opened_bench(data, limit, base_url, model, dtype, vllm_arg, [facts]) as bench,
        beside_mem0(bench, mem0) as rival,
    ):
        run = run_load(bench.client, bench.conversation, asked, bench.tell, rival)
        machine = machine_of(bench.client)
    show(*([encoding_table(run.encoding)] if run.encoding else []), load_table(run.cells), ratio_table(run.ratios))
    write_json(json_file, machine, run)
    if plot is not None:
        plot_load(run.cells, plot)
    end(run.complaints)
