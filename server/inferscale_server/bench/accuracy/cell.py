"""The figures of one variant, number of facts and category, from its rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from inferscale_server.bench.accuracy.estimate import Estimate, mean, recovered
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.bench.accuracy.row import Row
from inferscale_server.bench.cell import Ratio

ALL = "all"
MODES = ("off", "text", "kv")

RECOVERED_AT_LEAST, RECOVERED_LOW_AT_LEAST, MULTI_HOP_AT_LEAST, KL_AT_MOST = 0.97, 0.93, 0.85, 0.08
"""The project's promises for LoCoMo at k = 20 and 50."""
PROMISED_KS = (20, 50)


@dataclass(frozen=True, slots=True)
class Trio:
    """One question without memory, with memory as text, and with the very same memory as KV."""

    off: Row
    text: Row
    kv: Row

    @property
    def rows(self) -> tuple[Row, Row, Row]:
        """In the order of MODES."""
        return self.off, self.text, self.kv


@dataclass(frozen=True, slots=True)
class Cell:
    """Means over questions. Per mode: negative log likelihood in nats a token; F1 and share right where generated.

    `prefilled_memory` is how many of the memory's tokens were computed in kv mode although they could be injected.
    """

    variant: str
    k: int
    category: str
    questions: int
    nll: dict[str, float]
    recovered: Estimate
    kl: Estimate
    agreement: Estimate
    memory_tokens: float
    prefilled_memory: float
    f1: dict[str, float]
    right: dict[str, float]


def trios(ledger: Ledger, keys: Iterable[str] | None = None) -> list[Trio]:
    """Every kv row with the rows that it is compared with; only of these cases, if told."""
    wanted = None if keys is None else frozenset(keys)
    found = []
    for row in ledger.rows:
        off, text = ledger.get(row.off_key), ledger.get(row.text_key)
        if row.mode == "kv" and off is not None and text is not None and (wanted is None or row.case in wanted):
            found.append(Trio(off, text, row))
    return found


def cells(found: Sequence[Trio], seed: int) -> list[Cell]:
    """For each variant and number of facts all questions, then each category; the variants nearest to text first."""
    groups: dict[tuple[str, int, str], list[Trio]] = {}
    for trio in found:
        for category in {ALL, trio.kv.category}:  # questions without a category of their own are in ALL alone
            groups.setdefault((trio.kv.variant, trio.kv.k, category), []).append(trio)
    made = {key: _cell(*key, group, seed) for key, group in groups.items()}

    def rank(cell: Cell) -> tuple[object, ...]:
        return cell.k, made[cell.variant, cell.k, ALL].kl.value, cell.variant, cell.category != ALL, cell.category

    return sorted(made.values(), key=rank)


def _cell(variant: str, k: int, category: str, group: Sequence[Trio], seed: int) -> Cell:
    nll = [[row.mean_nll for row in rows] for rows in zip(*(trio.rows for trio in group), strict=True)]
    kv = [trio.kv for trio in group]
    return Cell(
        variant=variant,
        k=k,
        category=category,
        questions=len(group),
        nll={mode: fmean(of) for mode, of in zip(MODES, nll, strict=True)},
        recovered=recovered(nll[0], nll[1], nll[2], seed),
        kl=mean([row.kl or 0.0 for row in kv], seed),
        agreement=mean([row.agreement or 0.0 for row in kv], seed),
        memory_tokens=fmean(row.memory_tokens for row in kv),
        prefilled_memory=fmean(row.memory_as_text for row in kv),
        f1=_per_mode(group, "f1"),
        right=_per_mode(group, "right"),
    )


def _per_mode(group: Sequence[Trio], figure: str) -> dict[str, float]:
    """The mean of a figure over the questions that have it in every mode; empty when none has."""
    values = [[getattr(row, figure) for row in trio.rows] for trio in group]
    whole = [of for of in values if None not in of]
    return (
        {mode: fmean(map(float, of)) for mode, of in zip(MODES, zip(*whole, strict=True), strict=True)} if whole else {}
    )


def promises(found: Sequence[Cell]) -> list[Ratio]:
    """What the project promises of its default, beside what was measured."""
    made = []
    for cell in found:
        if cell.k in PROMISED_KS and cell.category in (ALL, "multi-hop"):
            name = f"{cell.variant}, k = {cell.k}"
            if cell.category == ALL:
                made.append(Ratio(f"{name}: recovered", cell.recovered.value, RECOVERED_AT_LEAST, True))
                made.append(Ratio(f"{name}: lower 95 % end", cell.recovered.low, RECOVERED_LOW_AT_LEAST, True))
                made.append(Ratio(f"{name}: KL", cell.kl.value, KL_AT_MOST, False))
            else:
                made.append(Ratio(f"{name}: multi-hop", cell.recovered.value, MULTI_HOP_AT_LEAST, True))
    return made
