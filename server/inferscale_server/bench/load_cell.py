"""What chats waited under one load, and the ratios between loads. Pure; the bounds are the project's goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from inferscale_server.bench.cell import Ratio, percentile
from inferscale_server.bench.load_loop import Timed
from inferscale_server.bench.losses import Losses

WHILE_ENCODING_MEDIAN_AT_MOST = 1.2
WHILE_ENCODING_P99_AT_MOST = 2.0
AUTO_OVER_BEST_AT_MOST = 1.1
"""Of the two fixed modes; the rest is what two equal loads differ by."""


@dataclass(frozen=True, slots=True)
class LoadCell:
    """Chats of one load that were answered. Milliseconds; `served` counts the answers by mode.

    `failed` counts the others, and adds beside them that failed.
    """

    load: str
    chats: int
    first_token_ms: float
    first_token_p99_ms: float
    latency_ms: float
    latency_p99_ms: float
    served: dict[str, int]
    failed: int = 0


def load_cell(load: str, chats: Sequence[Timed], failed: int = 0) -> LoadCell:
    """Sum up one load; `failed` of its requests are not among the chats."""
    assert chats, f"no chat under {load}"
    first, whole = [chat.first_token_ms for chat in chats], [chat.latency_ms for chat in chats]
    return LoadCell(
        load=load,
        chats=len(chats),
        first_token_ms=median(first),
        first_token_p99_ms=percentile(first, 0.99),
        latency_ms=median(whole),
        latency_p99_ms=percentile(whole, 0.99),
        served=dict(Counter(chat.reply.served for chat in chats)),
        failed=failed,
    )


def load_cells(answered: Mapping[str, Sequence[Timed]], losses: Losses | None = None) -> list[LoadCell]:
    """Sum up each load that has chats, with what was lost under its name."""
    return [load_cell(name, chats, losses.count(name) if losses else 0) for name, chats in answered.items() if chats]


def empty_loads(answered: Mapping[str, Sequence[Timed]]) -> list[str]:
    """Loads under which no chat came: there is nothing to say of them."""
    longer = "--seconds or --rate"
    return [
        f"no chat came under the load '{name}': raise {'--encoded-facts or --rate' if name == 'encoding' else longer}"
        for name, chats in answered.items()
        if not chats
    ]


def mode_ratios(cells: Sequence[LoadCell]) -> list[Ratio]:
    """Auto's median time to first token over the better one of the fixed modes."""
    by_mode = {cell.load: cell.first_token_ms for cell in cells}
    fixed = [by_mode[mode] for mode in ("kv", "text") if mode in by_mode]
    if "auto" not in by_mode or not fixed:
        return []
    return [Ratio("auto / better of kv and text", by_mode["auto"] / min(fixed), AUTO_OVER_BEST_AT_MOST, False)]


def encoding_ratios(idle: LoadCell, busy: LoadCell) -> list[Ratio]:
    """Time to first token while facts are encoded, over the same without.

    Of equally many chats: the 99th percentile of more is later.
    """
    assert idle.chats == busy.chats, f"{idle.chats} chats against {busy.chats}"
    middle, last = busy.first_token_ms / idle.first_token_ms, busy.first_token_p99_ms / idle.first_token_p99_ms
    return [
        Ratio("median while encoding / idle", middle, WHILE_ENCODING_MEDIAN_AT_MOST, False),
        Ratio("p99 while encoding / idle", last, WHILE_ENCODING_P99_AT_MOST, False),
    ]


def load_complaints(cells: Sequence[LoadCell]) -> list[str]:
    """Answers of a fixed mode that were served in another."""
    fixed = [cell for cell in cells if cell.load in ("kv", "text", "off")]
    return [
        f"{other} of {cell.chats} answers of mode {cell.load} were served otherwise"
        for cell in fixed
        if (other := cell.chats - cell.served.get(cell.load, 0))
    ]
