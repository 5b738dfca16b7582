"""What the benchmarks print. Pure: values in, rich tables out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from rich.markup import escape
from rich.table import Table

from inferscale_server.bench.agreement import LOGPROB_BELOW, Agreement
from inferscale_server.bench.cell import Cell, Ratio
from inferscale_server.bench.encoding import Encoding
from inferscale_server.bench.isolation import AUC_MARGIN, CONTROL_ABOVE, SIDES, IsolationRun, times
from inferscale_server.bench.lost_column import lost_column
from inferscale_server.bench.overhead import Overhead
from inferscale_server.bench.sample import STAGES
from inferscale_server.bench.session_cell import SessionCell, SessionTotal
from inferscale_server.bench.tier_cell import SOURCES, TierCell

YES, NO = "[green]yes[/green]", "[red]no[/red]"


def encoding_table(encoding: Encoding) -> Table:
    """How long a conversation took; `cost` is tokens computed for each token of the facts' own."""
    table = Table("facts", "tokens", "stored in s", "encoded in s", "facts/s", "tokens/s", "cost", title="Encoding")
    table.add_row(
        str(encoding.facts),
        str(encoding.tokens),
        f"{encoding.store_s:.1f}",
        f"{encoding.encode_s:.1f}",
        f"{encoding.facts_per_s:.1f}",
        f"{encoding.tokens_per_s:.0f}",
        f"{encoding.cost:.2f}",
    )
    return table


def ttft_table(cells: Iterable[Cell]) -> Table:
    """Time to first token per number of facts and mode; `tokens` are the memory's, `computed` the whole prompt's."""
    heads = ("facts", "memory", "median ms", "p90 ms", "p99 ms", "answers", "tokens", "computed", "injected")
    cells = list(cells)
    lost = lost_column([cell.failed for cell in cells])
    table = Table(*heads, *lost.head, title="Time to first token, over HTTP")
    for cell, failed in zip(cells, lost.rows, strict=True):
        injected = f"{cell.injected_share:.1%}" if cell.mode == "kv" else ""
        counts = (str(cell.samples), str(cell.memory_tokens), str(cell.prefilled_tokens), injected)
        times = (cell.ttft_ms, cell.ttft_p90_ms, cell.ttft_p99_ms)
        table.add_row(str(cell.k), cell.mode, *(f"{ms:.0f}" for ms in times), *counts, *failed)
    return table


def ratio_table(ratios: Iterable[Ratio]) -> Table:
    """Ratios beside what is required of them and their goals."""
    table = Table("ratio", "measured", "required", "met", "goal", "met", title="Ratios")
    for ratio in ratios:
        table.add_row(
            escape(ratio.name), f"{ratio.value:.2f}", *_kept(ratio, ratio.required), *_kept(ratio, ratio.bound)
        )
    return table


def _kept(ratio: Ratio, bound: float | None) -> tuple[str, str]:
    """The bound in words, and whether it is kept; nothing where there is none."""
    return ("", "") if bound is None else (ratio.in_words(bound), YES if ratio.keeps(bound) else NO)


def breakdown_table(cells: Iterable[Cell]) -> Table:
    """Median milliseconds of each stage, as the server says, and what is left of the client's time."""
    columns = [*STAGES[:-1], "engine", "outside", "client"]
    table = Table("facts", "memory", *columns, title="Where the time goes (ms)")
    for cell in cells:
        stages = [cell.stages_ms[stage] for stage in STAGES]
        table.add_row(str(cell.k), cell.mode, *(f"{ms:.1f}" for ms in (*stages, cell.outside_ms, cell.ttft_ms)))
    return table


def overhead_table(overheads: Iterable[Overhead]) -> Table:
    """What comes beside the engine's own work, and its bounds."""
    table = Table("as KV", "median ms", "goal", "met", title="Overhead")
    for one in overheads:
        table.add_row(one.name, f"{one.ms:.2f}", f"at most {one.at_most_ms:g} ms", YES if one.met else NO)
    return table


def agreement_table(agreements: Sequence[Agreement]) -> Table:
    """Per kind of comparison: prompts, identical tokens, and the differences of logprobs."""
    heads = (
        "compared",
        "prompts",
        "tokens",
        "identical",
        "largest difference",
        "median",
        f"all below {LOGPROB_BELOW:g}",
    )
    table = Table(*heads, title="Greedy answers, and differences of logprobs")
    by_check: defaultdict[str, list[Agreement]] = defaultdict(list)
    for one in agreements:
        by_check[one.check].append(one)
    for check, of_check in by_check.items():
        tokens = sum(one.tokens for one in of_check)
        identical = sum(one.identical_tokens for one in of_check)
        differences = [one.difference for one in of_check]
        held = YES if all(one.holds for one in of_check) else NO
        numbers = (str(len(of_check)), str(tokens), str(identical), f"{max(differences):.1e}")
        table.add_row(escape(check), *numbers, f"{median(differences):.1e}", held)
    return table


def isolation_table(run: IsolationRun) -> Table:
    """Per side: guesses, medians, and how well the time tells right from wrong."""
    heads = ("who guesses", "right + wrong", "right, median ms", "wrong, median ms", "AUC", "95 %", "wanted")
    table = Table(*heads, title="Guesses of a victim's fact, by the time to first token")
    wanted = {"attacker": f"{0.5 - AUC_MARGIN:g} … {0.5 + AUC_MARGIN:g}", "control": f"> {CONTROL_ABOVE:g}"}
    names = {"attacker": "another user", "control": "the victim itself"}
    for side, auc in zip(SIDES, (run.attacker, run.control), strict=True):
        right, wrong = (times(run.guesses, side, right=is_right) for is_right in (True, False))
        medians = (f"{median(right):.1f}", f"{median(wrong):.1f}")
        interval = f"{auc.low:.3f} … {auc.high:.3f}"
        table.add_row(names[side], f"{len(right)} + {len(wrong)}", *medians, f"{auc.value:.3f}", interval, wanted[side])
    return table


def sessions_table(cells: Sequence[SessionCell], totals: Sequence[SessionTotal]) -> Table:
    """A row a turn, two columns a kind of memory: time to first token and prompt tokens computed; then the sums,
    the 99th percentile of all turns, and the conversations that failed if any did."""
    heads = [head for total in totals for head in (f"{total.memory}: ms", "computed")]
    talks = totals[0].conversations if totals else 0
    table = Table("turn", *heads, title=f"Time to first token over the turns of a conversation, medians of {talks}")
    by_turn: defaultdict[int, list[SessionCell]] = defaultdict(list)
    for cell in cells:
        by_turn[cell.turn].append(cell)
    for turn, row in by_turn.items():
        table.add_row(str(turn), *(shown for cell in row for shown in _turn_figures(cell)))
    table.add_section()
    table.add_row("all", *(shown for total in totals for shown in _turn_figures(total)))
    table.add_row("p99", *(shown for total in totals for shown in (f"{total.turn_p99_ms:.0f}", "")))
    if any(total.failed for total in totals):
        table.add_row("failed", *(shown for total in totals for shown in (str(total.failed), "")))
    return table


def tiers_table(cells: Sequence[TierCell], tier: str, cold_cost_ms: float | None) -> Table:
    """A row a kind of answer; the last columns are prompt tokens by where their KV lay."""
    heads = ("memory", "answers", "median ms", "p99 ms", "stage ms", *(f"{source}: tokens" for source in SOURCES))
    cost = "" if cold_cost_ms is None else f"A cold answer takes {cold_cost_ms:.0f} ms longer than a warm one."
    lost = lost_column([cell.failed for cell in cells])
    table = Table(*heads, *lost.head, title=f"Time to first token with memory on {tier}", caption=cost)
    for cell, failed in zip(cells, lost.rows, strict=True):
        times = (f"{cell.ttft_ms:.0f}", f"{cell.ttft_p99_ms:.0f}", f"{cell.stage_ms:.1f}")
        tokens = (f"{cell.tokens[source]:.0f}" for source in SOURCES)
        table.add_row(cell.answer, str(cell.answers), *times, *tokens, *failed)
    return table


def _turn_figures(of: SessionCell | SessionTotal) -> tuple[str, str]:
    return f"{of.first_token_ms:.0f}", f"{of.prefilled_tokens:.0f}"
