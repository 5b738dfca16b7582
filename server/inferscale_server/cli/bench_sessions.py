"""`inferscale bench sessions`: the turns of a conversation."""

from __future__ import annotations

from typing import Annotated

import typer

from inferscale_server.cli.bench_setting import (
    DataOption,
    DtypeOption,
    JsonOption,
    LimitOption,
    ModelOption,
    PlotOption,
    RecalledOption,
    UrlOption,
    VllmArgOption,
    end,
    machine_of,
    opened_bench,
    show,
    write_json,
)


def sessions(
    data: DataOption = None,
    limit: LimitOption = None,
    conversations: Annotated[int, typer.Option("--conversations", metavar="N", min=1, help="How many to have.")] = 5,
    turns: Annotated[int, typer.Option("--turns", metavar="N", min=1, help="Questions of a conversation.")] = 10,
    facts: RecalledOption = 20,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of an answer.")] = 16,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """Time to first token and tokens computed, turn by turn: no memory, text and KV, chosen anew or in a session.

    Exit 1 when the run is void: an answer was served otherwise than asked for, or in no session.
    """
    from inferscale_server.bench.plot import plot_sessions
    from inferscale_server.bench.sessions import Talks, questions_of, run_sessions
    from inferscale_server.bench.tables import ratio_table, sessions_table

    talks = Talks(conversations, turns, facts, tokens)
    with opened_bench(
        data, limit, base_url, model, dtype, vllm_arg, [facts], asked_of=lambda conversation: questions_of(talks)
    ) as bench:
        run = run_sessions(bench.client, bench.conversation, talks, bench.tell)
        machine = machine_of(bench.client)
    show(sessions_table(run.cells, run.totals), ratio_table(run.ratios))
    write_json(json_file, machine, run)
    if plot is not None:
        plot_sessions(run.cells, plot)
    end(run.complaints)
