"""`bench throughput`: whole answers a second in a closed loop, system beside system on one server.

Each setting starts a loop a system: so many threads, each asking its next question when it has its answer. The clock
runs from the first question to the last answer, so the end, where fewer are under way, is in it for everybody.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, product
from typing import TYPE_CHECKING

from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.comparator import Comparator, Reply, whole_reply
from inferscale_server.bench.encoding import Encoding
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.probe import OPENINGS
from inferscale_server.bench.throughput_cell import (
    Setting,
    ThroughputCell,
    throughput_cell,
    throughput_complaints,
    throughput_ratios,
)
from inferscale_server.demo.server import Report

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

WARM_UP_ANSWERS = 2
"""Before each loop, not counted: kernels for these shapes, open connections, the header's KV."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The settings to go through; `rounds` are questions a thread."""

    ks: tuple[int, ...]
    concurrencies: tuple[int, ...]
    tokens: tuple[int, ...]
    rounds: int

    def settings(self) -> list[Setting]:
        """All of them."""
        return [Setting(*chosen) for chosen in product(self.ks, self.concurrencies, self.tokens)]


@dataclass(frozen=True, slots=True)
class ThroughputRun:
    """What `bench throughput` found out."""

    encoding: Encoding
    cells: tuple[ThroughputCell, ...]
    ratios: tuple[Ratio, ...]
    complaints: tuple[str, ...]


def run_throughput(
    client: InferScaleClient,
    systems: Sequence[Comparator],
    questions: Sequence[str],
    grid: Grid,
    tell: Report,
    losses: Losses,
) -> list[ThroughputCell]:
    """Every system in every setting; what fails is counted by cell. Raises the SDK's errors when most do."""
    asked = [endless(questions, at) for at in range(len(systems))]
    cells = []
    for setting in grid.settings():
        for system, following in zip(systems, asked, strict=True):
            tell(f"{system.name}: k = {setting.k}, {setting.concurrency} at once, {setting.tokens} tokens")
            cells.append(run_loop(client, system, following, setting, grid.rounds, losses))
    return cells


def run_loop(
    client: InferScaleClient,
    system: Comparator,
    questions: Iterator[str],
    setting: Setting,
    rounds: int,
    losses: Losses,
) -> ThroughputCell:
    """One system in one setting, warmed up. A thread whose question failed goes on with its next."""

    def ask(name: str, question: str) -> Reply | None:
        return losses.tried(name, lambda: whole_reply(client, system, question, setting.k, setting.tokens))

    name = setting.named(system.name)
    chosen = [next(questions) for _ in range(setting.concurrency * rounds)]
    with ThreadPoolExecutor(setting.concurrency) as pool:
        list(pool.map(partial(ask, WARM_UP), [next(questions) for _ in range(WARM_UP_ANSWERS)]))
        start = time.perf_counter()
        replies = list(pool.map(partial(ask, name), chosen))
        wall_s = time.perf_counter() - start
    losses.check(name)
    answered = [reply for reply in replies if reply is not None]
    return throughput_cell(system.name, setting, answered, wall_s, losses.count(name))


def endless(questions: Sequence[str], system: int) -> Iterator[str]:
    """The questions again and again, never twice in the same words, and in other words for every system.

    A question in the same words would find its vector in the server's cache.
    """
    assert questions, "there is nothing to ask"
    opening, different = OPENINGS[system % len(OPENINGS)], tuple(dict.fromkeys(questions))
    for turn in count():
        for question in different:
            yield f"{opening}{question}" + (f" ({turn})" if turn else "")


def summary(encoding: Encoding, cells: Sequence[ThroughputCell], losses: Losses) -> ThroughputRun:
    """Cells with their ratios and complaints."""
    complaints = (*throughput_complaints(cells), *losses.complaints)
    return ThroughputRun(encoding, tuple(cells), tuple(throughput_ratios(cells)), complaints)
