"""What `bench accuracy` prints and draws. matplotlib is imported when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Column, Table

from inferscale_server.bench.accuracy.cell import ALL, MODES, Cell
from inferscale_server.bench.accuracy.estimate import Estimate
from inferscale_server.bench.accuracy.gap import Gap
from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.tables import NO, YES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST = 5
"""Drawing from fewer questions than these again and again gives no interval worth telling."""
NAMES = frozenset({"recipe", "nearest to text", "compared"})
"""Columns that become as narrow as they must."""
CATEGORY, CATEGORY_WIDTH = "category", len("open-domain")


def tables(cells: Sequence[Cell], gaps: Sequence[Gap], promises: Sequence[Ratio]) -> list[Table]:
    """All that is printed, without the tables that would be empty. Fits into 80 columns."""
    made = [
        likelihood_table(cells),
        kept_table(cells),
        answers_table(cells),
        gaps_table(gaps),
        promises_table(promises),
    ]
    return [table for table in made if table is not None]


def likelihood_table(cells: Sequence[Cell]) -> Table:
    """What the gold answer costs in each mode; `prefilled`: tokens of the memory that were computed."""
    title = "Accuracy: the gold answer's negative log likelihood, in nats a token"
    table = _table(("k", "recipe", CATEGORY, "asked", *MODES, "prefilled"), title)
    for cell in cells:
        nll = (f"{cell.nll[mode]:.3f}" for mode in MODES)
        table.add_row(
            *_names(cell), str(cell.questions), *nll, f"{cell.prefilled_memory:.0f} of {cell.memory_tokens:.0f}"
        )
    return table


def kept_table(cells: Sequence[Cell]) -> Table:
    """How near memory as KV comes to memory as text: likelihood, divergence, likeliest token; nearest first."""
    heads = ("k", "recipe", CATEGORY, "recovered (95 %)", "KL to text (95 %)", "same")
    table = _table(heads, "Accuracy: KV beside text", "same: share of tokens whose likeliest one is the same")
    for cell in cells:
        figures = (_shown(cell.recovered, 2, cell.questions), _shown(cell.kl, 3, cell.questions))
        table.add_row(*_names(cell), *figures, f"{cell.agreement.value:.2f}")
    return table


def answers_table(cells: Sequence[Cell]) -> Table | None:
    """Generated answers; None when there are none."""
    if not any(cell.f1 for cell in cells):
        return None
    modes = " / ".join(MODES)
    table = _table(("k", "recipe", CATEGORY, f"F1: {modes}", "judged right"), "Generated answers")
    for cell in cells:
        table.add_row(*_names(cell), _per_mode(cell.f1), _per_mode(cell.right))
    return table


def gaps_table(gaps: Sequence[Gap]) -> Table | None:
    """Variants beside the nearest one; None when there is but one."""
    heads = ("k", "nearest to text", "compared", "asked", "KL farther by (95 %)", "sure")
    table = _table(heads, "KL, question by question", "sure: the interval leaves out 0")
    for gap in gaps:
        sure = "–" if gap.questions < FEWEST else YES if gap.significant else NO
        names = (str(gap.k), escape(gap.nearest), escape(gap.variant), str(gap.questions))
        table.add_row(*names, _shown(gap.kl, 3, gap.questions), sure)
    return table if gaps else None


def promises_table(promises: Sequence[Ratio]) -> Table | None:
    """What the project promises for LoCoMo, beside what was measured; None when nothing was."""
    table = Table("figure", "measured", "promised for LoCoMo", "met", title="Promises")
    for one in promises:
        table.add_row(escape(one.name), f"{one.value:.3f}", one.wanted, YES if one.met else NO)
    return table if promises else None


def _table(heads: Sequence[str], title: str, caption: str | None = None) -> Table:
    """Where there is too little room, names are folded and never figures."""
    return Table(*map(_column, heads), title=title, caption=caption)


def _column(head: str) -> Column:
    if head == CATEGORY:
        return Column(head, width=CATEGORY_WIDTH, overflow="fold")
    return Column(head, overflow="fold") if head in NAMES else Column(head, no_wrap=True)


def _names(cell: Cell) -> tuple[str, str, str]:
    return str(cell.k), escape(cell.variant), escape(cell.category)


def _shown(estimate: Estimate, digits: int, questions: int) -> str:
    """The figure, and its interval where there are questions enough to draw from."""
    if not math.isfinite(estimate.value):
        return "–"
    value = f"{estimate.value:.{digits}f}"
    return value if questions < FEWEST else f"{value} ({estimate.low:.{digits}f}…{estimate.high:.{digits}f})"


def _per_mode(figures: Mapping[str, float]) -> str:
    return " / ".join(f"{figures[mode]:.3f}" if mode in figures else "–" for mode in MODES)


def plot_accuracy(cells: Sequence[Cell], file: Path) -> None:
    """Two panels over all questions, a bar a recipe and number of facts: share recovered, and KL to text."""
    from matplotlib.figure import Figure

    shown = [cell for cell in cells if cell.category == ALL]
    figure = Figure(figsize=(9, 1.5 + 0.4 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(left, shown, [_drawable(cell.recovered, cell.questions) for cell in shown])
    _bars(right, shown, [_drawable(cell.kl, cell.questions) for cell in shown])
    left.axvline(1.0, color="gray", linestyle="--")
    left.set(xlabel="share of text's gain recovered (95 %)")
    right.set(xlabel="KL to text, nats a token (95 %)")
    left.invert_yaxis()
    figure.savefig(file, dpi=120)


def _bars(axes: Axes, cells: Sequence[Cell], estimates: Sequence[Estimate]) -> None:
    names = [f"{cell.variant}, k = {cell.k}" for cell in cells]
    values = [one.value for one in estimates]
    below = [max(one.value - one.low, 0.0) for one in estimates]
    above = [max(one.high - one.value, 0.0) for one in estimates]
    axes.barh(names, values, xerr=(below, above))
    axes.grid(alpha=0.3, axis="x")


def _drawable(estimate: Estimate, questions: int) -> Estimate:
    """Of too few questions, or of figures that are not finite, there is no bar or a bar without whiskers."""
    if questions >= FEWEST and all(map(math.isfinite, astuple(estimate))):
        return estimate
    value = estimate.value if math.isfinite(estimate.value) else 0.0
    return Estimate(value, value, value)
