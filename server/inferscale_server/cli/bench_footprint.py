"""`inferscale bench footprint`: bytes of memories, computed, and beside them those of a real user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from inferscale_server.cli.bench_setting import JsonOption, PlotOption, show, write_json
from inferscale_server.cli.connection import KeyOption, checked_id, checked_url, connect

if TYPE_CHECKING:
    from inferscale_server.bench.user_bytes import TierBytes

ServerOption = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="Also ask this server what --user takes.", callback=checked_url),
]
UserOption = Annotated[
    str | None, typer.Option("--user", "-u", help="Whose memory, with --base-url.", callback=checked_id)
]


def footprint(
    facts: Annotated[
        int, typer.Option("--facts", "--limit", metavar="N", min=1, help="Facts that each user has.")
    ] = 100,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", min=1, help="Tokens of a fact.")] = 30,
    json_file: JsonOption = None,
    plot: PlotOption = None,
    base_url: ServerOption = None,
    user: UserOption = None,
    api_key: KeyOption = None,
) -> None:
    """Bytes of KV a token, fact and user for common models, and users per GPU. Computed: starts nothing.

    With --base-url and --user also what one user's memory really takes there, tier by tier.
    """
    from inferscale_server.bench.footprint import Load, all_sizes, markdown
    from inferscale_server.bench.machine import this_machine
    from inferscale_server.bench.plot import plot_footprint

    if (base_url is None) != (user is None):
        raise typer.BadParameter("a real user's bytes need both --base-url and --user")
    held = [] if base_url is None or user is None else held_by(base_url, user, api_key)
    rows = all_sizes(Load(facts, tokens))
    print(markdown(rows))
    if held:
        show(held_table(held))
    write_json(json_file, this_machine(), {"rows": rows, "user": held})
    if plot is not None:
        plot_footprint(rows, plot)


def held_by(base_url: str, user: str, api_key: str | None) -> list[TierBytes]:
    """What the user's memory takes on that server. Raises the SDK's errors."""
    from inferscale_server.bench.user_bytes import tier_bytes

    with connect(base_url, api_key) as client:
        told, slab = client.footprint(user), client.status().raw.get("slab")
    return tier_bytes(told.bytes, told.tokens or 0, slab if isinstance(slab, dict) else {})


def held_table(held: Sequence[TierBytes]) -> Table:
    """A row a tier."""
    table = Table("tier", "bytes", "computed for all its tokens", title="What the user's memory takes")
    for one in held:
        table.add_row(one.tier, f"{one.measured:,}", "" if one.computed is None else f"{one.computed:,}")
    return table
