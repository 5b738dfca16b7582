"""`inferscale bench tiers`: memory that is not on the device any more."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from inferscale_server.cli.bench_setting import (
    DataOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    PlotOption,
    RecalledOption,
    UrlOption,
    VllmArgOption,
    end,
    finite,
    machine_of,
    opened_bench,
    show,
    write_json,
)

TierOption = Annotated[Literal["disk", "host"], typer.Option("--tier", help="Where the memory lies.")]
UsersOption = Annotated[int, typer.Option("--users", metavar="N", min=1, help="Users that share the slab.")]
SlabOption = Annotated[
    float,
    typer.Option(
        "--kv-device-gib", metavar="GIB", min=0.001, help="Slab of our own server: for a few users.", callback=finite
    ),
]


def tiers(
    tier: TierOption = "disk",
    data: DataOption = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Facts of each user, default those recalled.")
    ] = None,
    users: UsersOption = 12,
    facts: RecalledOption = 50,
    kv_device_gib: SlabOption = 0.1,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: UrlOption = None,
    model: ModelOption = None,
    dtype: DtypeOption = "bfloat16",
    vllm_arg: VllmArgOption = None,
) -> None:
    """Time to first token when all of a user's memory was pushed out to host memory or disk, beside text.

    Exit 1 when the run is void: too few users whose memory was cold, or an answer served otherwise than asked for.
    """
    from inferscale_server.bench.plot import plot_tiers
    from inferscale_server.bench.tables import ratio_table, tiers_table
    from inferscale_server.bench.tiers import Trial, questions_of, run_tiers

    options, trial = serve_options(tier, kv_device_gib, users), Trial(tier, users, facts)
    setting = (data, limit or facts, base_url, model, dtype, vllm_arg, [facts], options)
    with opened_bench(*setting, asked_of=lambda conversation: questions_of(trial)) as bench:
        run = run_tiers(bench.client, bench.conversation, trial, bench.tell)
        machine = machine_of(bench.client)
    show(tiers_table(run.cells, tier, run.cold_cost_ms), ratio_table(run.ratios))
    write_json(json_file, machine, run)
    if plot is not None:
        plot_tiers(run.cells, plot)
    end(run.complaints)


def serve_options(tier: str, kv_device_gib: float, users: int) -> tuple[str, ...]:
    """Of our own server: only this cold tier, with room for all users if the slab has room for one."""
    other = "host" if tier == "disk" else "disk"
    cold_gib = f"{kv_device_gib * (users + 1):g}"
    return ("--kv-device-gib", f"{kv_device_gib:g}", f"--kv-{tier}-gib", cold_gib, f"--kv-{other}-gib", "0")
