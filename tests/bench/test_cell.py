"""Statistics, ratios and verdicts of invented samples."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from inferscale_server.bench.cell import cells, complaints, percentile, ratios
from inferscale_server.bench.sample import Sample, cold
from inferscale_server.bench.tables import ratio_table

TTFT_MS = {"off": 50.0, "kv": 80.0, "text": 400.0}


def sample(
    k: int = 50,
    mode: str = "kv",
    ttft_ms: float | None = None,
    served: str | None = None,
    as_text: int | None = None,
    prefilled: int = 1000,
    facts: tuple[str, ...] = ("f1",),
) -> Sample:
    """A sample with ten tokens a fact, all injected in kv mode."""
    memory = 0 if mode == "off" else 10 * k
    all_text = memory if mode == "text" else 0
    return Sample(
        k,
        mode,
        served or mode,
        "because",
        TTFT_MS[mode] if ttft_ms is None else ttft_ms,
        {"embed": 10.0, "plan": 2.0, "ttft": 30.0},
        memory,
        all_text if as_text is None else as_text,
        memory,
        prefilled,
        facts,
    )


ALL = [sample(k, mode, facts=(str(k),)) for k in (5, 50) for mode in ("kv", "text", "off")]


def test_a_cell_holds_median_and_ninetieth_percentile() -> None:
    (cell,) = cells([sample(ttft_ms=float(ms)) for ms in (30, 10, 20, 1000)])
    assert (cell.samples, cell.ttft_ms, cell.ttft_p90_ms, cell.ttft_p99_ms) == (4, 25.0, 1000.0, 1000.0)
    assert cell.stages_ms == {"embed": 10.0, "search": 0.0, "plan": 2.0, "stage": 0.0, "ttft": 30.0}
    assert cell.memory_tokens == 500


def test_what_no_stage_accounts_for_is_outside() -> None:
    assert sample(ttft_ms=50.0).outside_ms == 8.0


def test_cells_are_ordered_by_facts_and_mode() -> None:
    assert [(cell.k, cell.mode) for cell in cells(ALL)] == [
        (5, "off"), (5, "text"), (5, "kv"), (50, "off"), (50, "text"), (50, "kv"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "value"), [(0.1, 1.0), (0.11, 2.0), (0.5, 5.0), (0.9, 9.0), (0.91, 10.0), (1.0, 10.0)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert percentile([10.0, *map(float, range(1, 10))], share) == value


def test_ratios_compare_the_largest_number_of_facts() -> None:
    assert [(ratio.value, ratio.met) for ratio in ratios(cells(ALL))] == [(5.0, False), (1.0, True), (1.6, False)]


def test_a_ratio_may_keep_what_is_required_and_miss_its_goal() -> None:
    over_text, _, over_floor = ratios(cells(ALL))
    assert over_text.required == 4.0 and over_text.keeps(4.0) and not over_text.keeps(over_text.bound)
    assert over_floor.required == 1.6 and over_floor.keeps(1.6) and not over_floor.keeps(over_floor.bound)
    console = Console(width=200, record=True, file=StringIO())
    console.print(ratio_table([over_text]))
    (row,) = [line for line in console.export_text().splitlines() if "text / kv" in line]
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["5.00", "at least 4", "yes", "at least 6", "no"]


def test_a_ratio_beyond_its_bounds_keeps_neither() -> None:
    slower = [sample(50, "kv", ttft_ms=121.0), *(one for one in ALL if (one.k, one.mode) != (50, "kv"))]
    found = ratios(cells(slower))
    assert [ratio.met for ratio in found] == [False, False, False]
    assert [ratio.required is not None and ratio.keeps(ratio.required) for ratio in found] == [False, False, False]


def test_a_ratio_without_its_cells_is_left_out() -> None:
    without_floor = [one for one in ALL if one.mode != "off"]
    assert len(ratios(cells(without_floor))) == 2


def test_a_good_run_has_no_complaint() -> None:
    assert complaints(ALL, cells(ALL)) == []


@pytest.mark.parametrize(("as_text", "void"), [(5, False), (6, True)])
def test_less_than_99_percent_injected_voids_the_run(as_text: int, void: bool) -> None:
    samples = [*ALL[:3], sample(50, "kv", as_text=as_text), *ALL[4:]]
    said = complaints(samples, cells(samples))
    assert said == (["only 98.8% of the memory tokens were injected at k = 50"] if void else [])


def test_an_answer_in_another_mode_than_asked_voids_the_run() -> None:
    samples = [*ALL, sample(5, "kv", served="text", as_text=0)]
    assert complaints(samples, cells(samples)) == [
        "1 of 7 answers were not served as asked for, such as kv with k = 5 as text (because)"
    ]


def test_a_cell_without_a_cold_answer_voids_the_run() -> None:
    assert complaints(ALL, cells(one for one in ALL if (one.k, one.mode) != (5, "text"))) == [
        "no answer of mode text with k = 5 had a memory that was not in the prefix cache"
    ]


def test_text_that_was_not_all_computed_was_warm() -> None:
    warm, fresh = sample(mode="text", prefilled=499), sample(mode="text", prefilled=500)
    assert cold([warm, fresh]) == [fresh]


def test_injecting_the_same_facts_in_the_same_order_again_is_warm() -> None:
    first, other, again = sample(facts=("a", "b")), sample(facts=("b", "a")), sample(facts=("a", "b"))
    assert cold([first, other, again]) == [first, other]


def test_facts_that_the_warm_up_injected_are_warm() -> None:
    again, other = sample(facts=("a", "b")), sample(facts=("b", "a"))
    assert cold([again, other], [sample(facts=("a", "b"))]) == [other]
    assert cold([again], [sample(mode="text", facts=("a", "b"))]) == [again]


def test_text_does_not_warm_kv_and_no_memory_is_always_cold() -> None:
    samples = [sample(mode="text"), sample(mode="kv"), sample(mode="off", facts=()), sample(mode="off", facts=())]
    assert cold(samples) == samples
