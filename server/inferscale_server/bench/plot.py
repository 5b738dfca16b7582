"""What the benchmarks draw; matplotlib is imported when something is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_server.bench.agreement import LOGPROB_BELOW, Agreement
from inferscale_server.bench.cell import Cell
from inferscale_server.bench.encoding import Mark
from inferscale_server.bench.footprint import MIB, Sizes
from inferscale_server.bench.index_speed import IndexFigures
from inferscale_server.bench.isolation import SIDES, IsolationRun, times
from inferscale_server.bench.load_cell import LoadCell
from inferscale_server.bench.probe import MODES, RIVAL
from inferscale_server.bench.session_cell import SessionCell
from inferscale_server.bench.throughput_cell import ThroughputCell
from inferscale_server.bench.tier_cell import TierCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_ttft(cells: Sequence[Cell], file: Path) -> None:
    """A line a mode: facts against median milliseconds, up to the 90th percentile as a whisker."""

    def draw(axes: Axes) -> None:
        for mode in (*MODES, RIVAL):
            line = [cell for cell in cells if cell.mode == mode]
            if not line:
                continue
            medians = [cell.ttft_ms for cell in line]
            above = [cell.ttft_p90_ms - cell.ttft_ms for cell in line]
            axes.errorbar([cell.k for cell in line], medians, yerr=([0.0] * len(line), above), marker="o", label=mode)
        axes.set(xlabel="facts recalled", ylabel="time to first token, ms (median, p90)", ylim=(0, None))
        axes.legend()

    _save(draw, file)


def plot_encoding(marks: Sequence[Mark], file: Path) -> None:
    """Chunks encoded, over the time that counts as encoding."""

    def draw(axes: Axes) -> None:
        axes.plot([mark.after_s for mark in marks], [mark.stored - marks[0].stored for mark in marks])
        axes.set(xlabel="seconds of encoding", ylabel="chunks encoded", ylim=(0, None))

    _save(draw, file)


def plot_agreement(agreements: Sequence[Agreement], file: Path) -> None:
    """A point a prompt: the largest difference of a logprob, and the bound."""

    def draw(axes: Axes) -> None:
        for check in dict.fromkeys(one.check for one in agreements):
            differences = [one.difference for one in agreements if one.check == check]
            axes.plot(range(1, len(differences) + 1), differences, "o", label=check)
        axes.axhline(LOGPROB_BELOW, color="gray", linestyle="--", label="bound")
        # Linear below what float32 can tell apart, since two answers may well be equal.
        axes.set_yscale("symlog", linthresh=1e-7)
        axes.set(xlabel="prompt", ylabel="largest difference of a logprob")
        axes.legend()

    _save(draw, file)


def plot_isolation(run: IsolationRun, file: Path) -> None:
    """A line a side and kind of guess: the share of guesses that were answered within so many milliseconds."""

    def draw(axes: Axes) -> None:
        for side in SIDES:
            for right, style in ((True, "-"), (False, "--")):
                ordered = sorted(times(run.guesses, side, right=right))
                shares = [(at + 1) / len(ordered) for at in range(len(ordered))]
                axes.step(ordered, shares, style, where="post", label=f"{side}, {'right' if right else 'wrong'}")
        axes.set(xlabel="time to first token, ms", ylabel="share of guesses", ylim=(0, 1))
        axes.legend()

    _save(draw, file)


def plot_throughput(cells: Sequence[ThroughputCell], file: Path) -> None:
    """A line a system and length of answer: answers a second against answers under way, at the largest k."""
    largest = max(cell.k for cell in cells)

    def draw(axes: Axes) -> None:
        at_largest = [cell for cell in cells if cell.k == largest]
        for system, tokens in dict.fromkeys((cell.system, cell.tokens) for cell in at_largest):
            line = [cell for cell in at_largest if (cell.system, cell.tokens) == (system, tokens)]
            rates = [cell.answers_per_s for cell in line]
            axes.plot([cell.concurrency for cell in line], rates, marker="o", label=f"{system}, {tokens} tokens")
        axes.set(xlabel="answers under way", ylabel=f"answers a second, k = {largest}", ylim=(0, None))
        axes.legend()

    _save(draw, file)


def plot_index(rows: Sequence[IndexFigures], file: Path) -> None:
    """A line a backend: vectors against median milliseconds, up to the 99th percentile as a whisker."""

    def draw(axes: Axes) -> None:
        for backend in dict.fromkeys(row.backend for row in rows):
            line = [row for row in rows if row.backend == backend]
            above = [max(row.p99_ms - row.median_ms, 0.0) for row in line]
            medians = [row.median_ms for row in line]
            axes.errorbar(
                [row.vectors for row in line], medians, yerr=([0.0] * len(line), above), marker="o", label=backend
            )
        axes.set(xlabel="vectors", ylabel="search, ms (median, p99)", xscale="log", yscale="log")
        axes.legend()

    _save(draw, file)


def plot_load(cells: Sequence[LoadCell], file: Path) -> None:
    """Two bars a load: median and 99th percentile of the time to first token."""
    medians = [cell.first_token_ms for cell in cells]
    _save(_wait_bars([cell.load for cell in cells], medians, [cell.first_token_p99_ms for cell in cells]), file)


def plot_tiers(cells: Sequence[TierCell], file: Path) -> None:
    """Two bars a kind of answer: median and 99th percentile of the time to first token."""
    medians = [cell.ttft_ms for cell in cells]
    _save(_wait_bars([cell.answer for cell in cells], medians, [cell.ttft_p99_ms for cell in cells]), file)


def plot_footprint(rows: Sequence[Sizes], file: Path) -> None:
    """A bar a model and dtype: MiB of KV a user."""

    def draw(axes: Axes) -> None:
        axes.barh([f"{row.model}, {row.dtype}" for row in rows], [row.user_bytes / MIB for row in rows])
        axes.invert_yaxis()
        axes.set(xlabel="MiB of KV a user")

    _save(draw, file)


def _wait_bars(names: Sequence[str], medians: Sequence[float], p99s: Sequence[float]) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        places = range(len(names))
        axes.bar([at - 0.2 for at in places], medians, 0.4, label="median")
        axes.bar([at + 0.2 for at in places], p99s, 0.4, label="p99")
        axes.set_xticks(list(places), names)
        axes.set(ylabel="time to first token, ms")
        axes.legend()

    return draw


def plot_sessions(cells: Sequence[SessionCell], file: Path) -> None:
    """A line a kind of memory: turns against median milliseconds to the first token."""

    def draw(axes: Axes) -> None:
        for memory in dict.fromkeys(cell.memory for cell in cells):
            line = [cell for cell in cells if cell.memory == memory]
            axes.plot([cell.turn for cell in line], [cell.first_token_ms for cell in line], marker="o", label=memory)
        axes.set(xlabel="turn of the conversation", ylabel="time to first token, ms (median)", ylim=(0, None))
        axes.legend()

    _save(draw, file)


def _save(draw: Callable[[Axes], None], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
