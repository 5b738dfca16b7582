"""`inferscale bench`: measurements that a release is judged by. Each starts a server of its own, unless given one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_server.cli import bench_accuracy, bench_footprint, bench_index, bench_load, bench_sessions, bench_tiers
from inferscale_server.cli.bench_setting import (
    BreakdownOption,
    DataOption,
    DtypeOption,
    JsonOption,
    LimitOption,
    Mem0Option,
    ModelOption,
    OneByOneOption,
    PlotOption,
    QuestionsOption,
    UrlOption,
    VllmArgOption,
    beside_mem0,
    end,
    machine_of,
    opened_bench,
    opened_client,
    show,
    write_json,
)
from inferscale_server.cli.folder import KeyOption

if TYPE_CHECKING:
    from inferscale_server.bench.conversation import Conversation

ENCODED_FACTS = 250
"""How many facts `bench encode` takes when it is not told."""
GUESSED_FACTS = 600
"""How many facts `bench isolation` guesses: the standard error of its AUC is then 0.017."""

app = typer.Typer(help="Measure a server; exit 1 when a measurement is void or wrong.", no_args_is_help=True)
app.command()(bench_index.index)
app.command()(bench_load.throughput)
app.command()(bench_load.load)
app.command()(bench_sessions.sessions)
app.command()(bench_tiers.tiers)
app.command()(bench_footprint.footprint)


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
    from inferscale_server.bench.ttft import questions_of_run, run_ttft

    def asked_of(conversation: Conversation) -> int:
        return questions_of_run(conversation, questions, mem0)

    with (
        opened_bench(data, limit, base_url, model, dtype, vllm_arg, asked_of=asked_of) as bench,
        beside_mem0(bench, mem0) as rival,
    ):
        run = run_ttft(bench.client, bench.conversation, questions, bench.tell, rival, breakdown)
        machine = machine_of(bench.client)
    show(tables.encoding_table(run.encoding), tables.ttft_table(run.cells), tables.ratio_table(run.ratios))
    if breakdown:
        show(tables.breakdown_table(run.cells), tables.overhead_table(run.overheads))
    write_json(json_file, machine, run)
    if plot is not None:
        plot_ttft(run.cells, plot)
    end(run.complaints)


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

    with opened_bench(data, limit, base_url, model, dtype, vllm_arg, asked_of=lambda conversation: 0) as bench:
        encoding = take_in(bench.client, new_user(), bench.conversation.facts, bench.tell, one_by_one)
        machine = machine_of(bench.client)
    show(tables.encoding_table(encoding))
    write_json(json_file, machine, encoding)
    if plot is not None:
        plot_encoding(encoding.marks, plot)
    end(encoding.complaints)


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

    with opened_bench(data, limit, base_url, model, dtype, vllm_arg) as bench:
        found = run_equivalence(bench.client, bench.conversation, questions, bench.tell)
        machine = machine_of(bench.client)
    show(tables.agreement_table(found))
    write_json(json_file, machine, {"agreements": found})
    if plot is not None:
        plot_agreement(found, plot)
    end(agreement.complaints(found))


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

    with opened_client(base_url, model, dtype, vllm_arg) as asked:
        run = run_isolation(asked.client, limit, asked.tell)
        machine = machine_of(asked.client)
    show(tables.isolation_table(run))
    write_json(json_file, machine, run)
    if plot is not None:
        plot_isolation(run, plot)
    end(run.complaints)


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
    from inferscale_server.bench.accuracy import failure, report
    from inferscale_server.bench.accuracy.case import spread
    from inferscale_server.bench.accuracy.cell import cells, promises, trios
    from inferscale_server.bench.accuracy.gap import gaps
    from inferscale_server.bench.accuracy.ledger import Ledger
    from inferscale_server.bench.accuracy.run import Plan, measure_all, missing_count, settings_of
    from inferscale_server.bench.machine import this_machine
    from inferscale_server.bench.server_process import ServerChoice

    variants, everything = bench_accuracy.variants_of(recipe, base_url), bench_accuracy.haystacks_of(data)
    judge = bench_accuracy.judge_of(judge_url, judge_model, judge_key)
    plan = Plan(tuple(dict.fromkeys(k or bench_accuracy.DEFAULT_KS)), top, threads, answers or judge is not None, judge)
    choice = ServerChoice(base_url, model, dtype, tuple(vllm_arg or ()))
    asked = spread(everything, limit)
    with bench_accuracy.out_folder(out) as folder:
        ledger = Ledger(folder, settings_of(plan, choice, everything))
        with bench_accuracy.shown_progress(missing_count(plan, variants, asked, ledger)) as progress:
            failed = measure_all(plan, choice, variants, asked, ledger, progress, api_key, machine_of)
        found = trios(ledger, (case.key for haystack in asked for case in haystack.cases))
    figures, apart = cells(found, seed), gaps(found, seed)
    promised = promises(figures) if all(haystack.is_locomo for haystack in everything) else []
    show(*report.tables(figures, apart, promised))
    rows = [row.figures() for trio in found for row in trio.rows]
    told: dict[str, object] = {"settings": {**ledger.settings, "seed": seed}, "variants": ledger.variants}
    told |= {"cells": figures, "gaps": apart, "promises": promised, "rows": rows, "failed": [*map(str, failed)]}
    write_json(json_file, this_machine(), told)
    if plot is not None and figures:
        report.plot_accuracy(figures, plot)
    end(failure.told(failed))
