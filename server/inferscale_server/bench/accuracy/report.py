"""What `bench accuracy` prints and draws. matplotlib is imported when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from inferscale_server.bench.accuracy.cell import ALL, MODES, Cell
from inferscale_server.bench.accuracy.estimate import Estimate
from inferscale_server.bench.accuracy.gap import Gap
from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.tables import NO, YES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def accuracy_table(cells: Sequence[Cell]) -> Table:
    """Likelihood, divergence and agreement; nearest to text first."""
    heads = ("facts", "recipe", "category", "questions", "NLL off / text / kv", "recovered (95 %)", "KL to text (95 %)")
    table = Table(*heads, "same top token", "prefilled", title="Accuracy: the gold answer's likelihood")
    for cell in cells:
        nll = " / ".join(f"{cell.nll[mode]:.3f}" for mode in MODES)
        figures = (_shown(cell.recovered, 2), _shown(cell.kl, 3), f"{cell.agreement.value:.2f}")
        names = (str(cell.k), escape(cell.variant), escape(cell.category), str(cell.questions))
        table.add_row(*names, nll, *figures, f"{cell.prefilled_memory:.0f} of {cell.memory_tokens:.0f}")
    return table


def answers_table(cells: Sequence[Cell]) -> Table | None:
    """Generated answers; None when there are none."""
    if not any(cell.f1 for cell in cells):
        return None
    heads = ("facts", "recipe", "category", "F1 off / text / kv", "judged right off / text / kv")
    table = Table(*heads, title="Generated answers")
    for cell in cells:
        names = (str(cell.k), escape(cell.variant), escape(cell.category))
        table.add_row(*names, _per_mode(cell.f1), _per_mode(cell.right))
    return table


def gaps_table(gaps: Sequence[Gap]) -> Table | None:
    """Variants beside the nearest one; None when there is but one."""
    heads = ("facts", "nearest to text", "compared", "questions", "KL farther by (95 %)", "significant")
    table = Table(*heads, title="KL, question by question")
    for gap in gaps:
        names = (str(gap.k), escape(gap.nearest), escape(gap.variant), str(gap.questions))
        table.add_row(*names, _shown(gap.kl, 3), YES if gap.significant else NO)
    return table if gaps else None


def promises_table(promises: Sequence[Ratio]) -> Table | None:
    """What the project promises for LoCoMo, beside what was measured on whatever was asked; None when nothing was."""
    table = Table("figure", "measured", "promised for LoCoMo", "met", title="Promises")
    for one in promises:
        table.add_row(escape(one.name), f"{one.value:.3f}", one.wanted, YES if one.met else NO)
    return table if promises else None


def _shown(estimate: Estimate, digits: int) -> str:
    if not math.isfinite(estimate.value):
        return "–"
    return f"{estimate.value:.{digits}f} ({estimate.low:.{digits}f} … {estimate.high:.{digits}f})"


def _per_mode(figures: Mapping[str, float]) -> str:
    return " / ".join(f"{figures[mode]:.3f}" if mode in figures else "–" for mode in MODES)


def plot_accuracy(cells: Sequence[Cell], file: Path) -> None:
    """Two panels over all questions, a bar a recipe and number of facts: share recovered, and KL to text."""
    from matplotlib.figure import Figure

    shown = [cell for cell in cells if cell.category == ALL]
    figure = Figure(figsize=(9, 1.5 + 0.4 * len(shown)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(left, shown, [cell.recovered for cell in shown])
    _bars(right, shown, [cell.kl for cell in shown])
    left.axvline(1.0, color="gray", linestyle="--")
    left.set(xlabel="share of text's gain recovered (95 %)")
    right.set(xlabel="KL to text, nats a token (95 %)")
    left.invert_yaxis()
    figure.savefig(file, dpi=120)


def _bars(axes: Axes, cells: Sequence[Cell], estimates: Sequence[Estimate]) -> None:
    names = [f"{cell.variant}, k = {cell.k}" for cell in cells]
    estimates = [_drawable(one) for one in estimates]
    values = [one.value for one in estimates]
    below = [max(one.value - one.low, 0.0) for one in estimates]
    above = [max(one.high - one.value, 0.0) for one in estimates]
    axes.barh(names, values, xerr=(below, above))
    axes.grid(alpha=0.3, axis="x")


def _drawable(estimate: Estimate) -> Estimate:
    """What cannot be drawn, of figures that are not finite, is no bar or a bar without whiskers."""
    if all(map(math.isfinite, astuple(estimate))):
        return estimate
    value = estimate.value if math.isfinite(estimate.value) else 0.0
    return Estimate(value, value, value)
