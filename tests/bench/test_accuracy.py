"""Ten questions with known numbers: every figure of `bench accuracy` is what comes out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from inferscale_server.bench.accuracy.case import Haystack, spread
from inferscale_server.bench.accuracy.cell import ALL, Cell, cells, promises, trios
from inferscale_server.bench.accuracy.estimate import RESAMPLES, recovered
from inferscale_server.bench.accuracy.failure import Failure
from inferscale_server.bench.accuracy.gap import gaps
from inferscale_server.bench.accuracy.ledger import ROWS, Ledger
from inferscale_server.bench.accuracy.ledger import SETTINGS as SETTINGS_FILE
from inferscale_server.bench.accuracy.measure import Measuring, Progress
from inferscale_server.bench.accuracy.report import answers_table, kept_table, likelihood_table, plot_accuracy
from inferscale_server.errors import ConfigError
from tests.bench.ten_questions import CASES, LN2, MEMORY_TOKENS, TEN, TenQuestions

QUIET = Progress(lambda text: None, lambda count: None)
SETTINGS = {"questions": "ten"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path, SETTINGS)


def measure(model: TenQuestions, ledger: Ledger, variant: str = "primer", ks: tuple[int, ...] = (20,)) -> list[Failure]:
    return Measuring(model, variant, ledger).run([TEN], ks, 1, QUIET)


def by_category(found: list[Cell]) -> dict[str, Cell]:
    return {cell.category: cell for cell in found}


def test_what_is_recovered_is_the_share_of_texts_gain(ledger: Ledger) -> None:
    assert measure(TenQuestions(), ledger) == []
    of = by_category(cells(trios(ledger), seed=0))
    assert of[ALL].nll == pytest.approx({"off": 3 * LN2, "text": LN2, "kv": 1.5 * LN2})
    assert [of[name].recovered.value for name in (ALL, "single-hop", "multi-hop")] == pytest.approx([0.75, 1.0, 0.5])
    assert [of[name].questions for name in (ALL, "single-hop", "multi-hop")] == [10, 5, 5]


def test_kl_and_agreement_are_over_the_answers_positions(ledger: Ledger) -> None:
    measure(TenQuestions(), ledger)
    of = by_category(cells(trios(ledger), seed=0))
    assert [of[name].kl.value for name in (ALL, "single-hop", "multi-hop")] == pytest.approx([LN2 / 8, 0.0, LN2 / 4])
    assert [of[name].agreement.value for name in (ALL, "single-hop", "multi-hop")] == pytest.approx([0.5, 1.0, 0.0])


def test_an_interval_holds_the_figure_and_closes_where_questions_do_not_differ(ledger: Ledger) -> None:
    measure(TenQuestions(), ledger)
    of = by_category(cells(trios(ledger), seed=0))
    assert 0.5 <= of[ALL].recovered.low < 0.75 < of[ALL].recovered.high <= 1.0
    assert of["multi-hop"].recovered.low == pytest.approx(0.5) == of["multi-hop"].recovered.high


def test_a_question_without_a_category_of_its_own_counts_once(tmp_path: Path) -> None:
    haystack = Haystack("ten", TEN.facts, tuple(replace(case, category=ALL) for case in CASES))
    ledger = Ledger(tmp_path, SETTINGS)
    Measuring(TenQuestions(), "primer", ledger).run([haystack], (20,), 1, QUIET)
    [cell] = cells(trios(ledger), seed=0)
    assert (cell.category, cell.questions) == (ALL, 10)


def test_where_text_gains_nothing_no_share_of_it_is_told() -> None:
    estimate = recovered([1.0, 1.0], [1.0, 1.0], [1.0, 2.0], seed=0)
    assert not math.isfinite(estimate.value) and not math.isfinite(estimate.low)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kv", [1.0, 1.5])
def test_a_figure_that_is_not_finite_is_neither_shown_nor_drawn(ledger: Ledger, tmp_path: Path, kv: float) -> None:
    measure(TenQuestions(), ledger)
    whole = by_category(cells(trios(ledger), seed=0))[ALL]
    cell = replace(whole, recovered=recovered([1.0, 1.0], [1.0, 1.0], [1.0, kv], seed=0))
    [*_, shown, _kl, _agreement] = [next(iter(column.cells)) for column in kept_table([cell]).columns]
    assert shown == "–"
    plot_accuracy([cell, whole], tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_an_interval_is_that_of_resampled_questions() -> None:
    # Of two questions, text gains 1 at each; kv keeps all of one and nothing of the other.
    estimate = recovered([1.0, 1.0], [0.0, 0.0], [0.0, 1.0], seed=3)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, 0.0, 1.0)
    assert RESAMPLES >= 1_000


def test_a_question_with_a_large_gain_weighs_more_than_one_with_none() -> None:
    # A mean of ratios would be (1/2 + 100) / 2.
    assert recovered([10.0, 1.01], [0.0, 1.0], [5.0, 0.01], seed=0).value == pytest.approx(6.0 / 10.01)


def test_the_same_seed_gives_the_same_interval(ledger: Ledger) -> None:
    measure(TenQuestions(), ledger)
    found = trios(ledger)
    assert cells(found, 1) == cells(found, 1)


def test_what_could_have_been_injected_and_was_not_is_counted(ledger: Ledger) -> None:
    measure(TenQuestions(), ledger)
    cell = by_category(cells(trios(ledger), seed=0))[ALL]
    assert (cell.memory_tokens, cell.prefilled_memory) == (30, 0)


def test_off_and_text_are_measured_once_for_all_variants(ledger: Ledger) -> None:
    first, second = TenQuestions(), TenQuestions("g")
    measure(first, ledger, "primer")
    measure(second, ledger, "isolated")
    assert {mode for _, mode, _ in first.asked} == {"off", "text", "kv"} and len(first.asked) == 30
    assert {mode for _, mode, _ in second.asked} == {"kv"} and len(second.asked) == 10
    assert {cell.variant for cell in cells(trios(ledger), 0)} == {"primer", "isolated"}


def test_variants_are_ranked_by_kl(ledger: Ledger) -> None:
    class Near(TenQuestions):
        def opinion(self, user, case, mode, k):  # type: ignore[no-untyped-def]
            return super().opinion(user, CASES[0] if mode == "kv" else case, mode, k)

    measure(TenQuestions(), ledger, "far")
    near = [Haystack("one", TEN.facts, CASES[:1])]
    Measuring(Near("g"), "near", ledger).run(near, (20,), 1, QUIET)
    whole = [cell.variant for cell in cells(trios(ledger), 0) if cell.category == ALL]
    assert whole == ["near", "far"]


def test_variants_are_compared_question_by_question(ledger: Ledger) -> None:
    class Swapped(TenQuestions):
        def opinion(self, user, case, mode, k):  # type: ignore[no-untyped-def]
            far = super().opinion(user, CASES[1] if mode == "kv" else case, mode, k)
            return replace(far, prompt_digest=f"{case.question} {k}", frame_digest=case.question)

    measure(TenQuestions(), ledger, "mixed")
    assert gaps(trios(ledger), seed=0) == []
    measure(Swapped("g"), ledger, "always far")
    [gap] = gaps(trios(ledger), seed=0)
    assert (gap.nearest, gap.variant, gap.questions) == ("mixed", "always far", 10)
    # Equal on the five multi-hop questions, ln 2 / 4 farther on the five others.
    assert gap.kl.value == pytest.approx(LN2 / 8) and gap.significant


def test_a_broken_off_run_goes_on_where_it_was(tmp_path: Path) -> None:
    broken = TenQuestions(broken=frozenset({"Question 3?", "Question 4?"}))
    failed = measure(broken, Ledger(tmp_path, SETTINGS))
    assert len(failed) == 2 and all("not all encoded" in one.reason for one in failed)
    with (tmp_path / ROWS).open("a") as file:
        file.write('{"case": "ten/9", "mo')  # as a kill leaves it
    again = TenQuestions()
    ledger = Ledger(tmp_path, SETTINGS)
    assert measure(again, ledger) == []
    asked = {(f"Question {at}?", mode, k) for at in (3, 4) for mode, k in (("kv", 20), ("text", 20), ("off", 0))}
    assert set(again.asked) == asked
    assert len(trios(Ledger(tmp_path, SETTINGS))) == 10


def test_whoever_breaks_a_run_off_does_not_wait_for_all_that_was_still_to_be_asked(ledger: Ledger) -> None:
    going_on = Event()

    class Interrupted(TenQuestions):
        def opinion(self, user, case, mode, k):  # type: ignore[no-untyped-def]
            self.asked.append((case.question, mode, k))
            if case is CASES[0]:
                raise KeyboardInterrupt
            going_on.wait()

    model = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        measure(model, ledger)
    going_on.set()
    assert {question for question, _, _ in model.asked} <= {CASES[0].question, CASES[1].question}


def test_a_kill_while_the_settings_are_written_loses_no_row(tmp_path: Path) -> None:
    measure(TenQuestions(), Ledger(tmp_path, SETTINGS))
    (tmp_path / f"{SETTINGS_FILE}.tmp").write_text('{"questions": "te')
    again = TenQuestions()
    assert measure(again, Ledger(tmp_path, SETTINGS)) == [] and again.asked == []


def test_settings_are_replaced_and_never_written_in_place(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, SETTINGS)
    (kept := tmp_path / "kept.json").hardlink_to(tmp_path / SETTINGS_FILE)
    before = kept.read_bytes()
    ledger.serves("primer", {"fingerprint": "f"})
    assert kept.read_bytes() == before != (tmp_path / SETTINGS_FILE).read_bytes()


def test_a_finished_run_asks_nothing_and_takes_nothing_in(tmp_path: Path) -> None:
    measure(TenQuestions(), Ledger(tmp_path, SETTINGS))
    again = TenQuestions()
    measure(again, Ledger(tmp_path, SETTINGS))
    assert again.asked == [] and again.taken_in == 0


def test_rows_of_other_settings_are_refused(tmp_path: Path) -> None:
    measure(TenQuestions(), Ledger(tmp_path, SETTINGS))
    with pytest.raises(ConfigError, match="made with questions = 'ten', not 'eleven': take another folder"):
        Ledger(tmp_path, {"questions": "eleven"})


def test_rows_of_chunks_that_were_encoded_otherwise_are_refused(tmp_path: Path) -> None:
    measure(TenQuestions("f"), Ledger(tmp_path, SETTINGS))
    with pytest.raises(ConfigError, match="encoded otherwise"):
        measure(TenQuestions("g"), Ledger(tmp_path, SETTINGS), ks=(20, 50))


def test_a_folder_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[1]")
    with pytest.raises(ConfigError, match="holds no run"):
        Ledger(tmp_path, SETTINGS)


@pytest.mark.parametrize("changed", [{"injected_tokens": 0}, {"injected_tokens": 7, "memory_as_text": MEMORY_TOKENS}])
def test_a_kv_row_without_injected_memory_is_an_error_though_the_header_was(
    ledger: Ledger, changed: dict[str, int]
) -> None:
    failed = measure(TenQuestions(changed=changed), ledger)
    assert len(failed) == 10 and all("nothing of the memory was injected" in one.reason for one in failed)
    assert trios(ledger) == []


def test_a_limit_takes_questions_evenly_spread() -> None:
    halves = [Haystack("a", (), CASES[:6]), Haystack("b", (), CASES[6:])]
    assert [case.key for haystack in spread(halves, 5) for case in haystack.cases] == [
        f"ten/{at}" for at in (0, 2, 4, 6, 8)
    ]
    assert spread(halves, None) == halves
    assert [haystack.name for haystack in spread(halves, 1)] == ["a"]


def test_answers_are_compared_with_the_gold_one(ledger: Ledger) -> None:
    measure(TenQuestions(answers=True), ledger)
    cell = by_category(cells(trios(ledger), seed=0))[ALL]
    assert cell.f1 == {"off": 0.0, "text": 1.0, "kv": 1.0} and cell.right == {}
    assert answers_table([cell]) is not None


def test_without_generated_answers_there_is_no_table_of_them(ledger: Ledger) -> None:
    measure(TenQuestions(), ledger)
    found = cells(trios(ledger), seed=0)
    assert answers_table(found) is None
    assert likelihood_table(found).row_count == kept_table(found).row_count == 3


def test_promises_are_read_off_the_whole_and_off_multi_hop(ledger: Ledger) -> None:
    measure(TenQuestions(), ledger, ks=(5, 20))
    made = {ratio.name: ratio.met for ratio in promises(cells(trios(ledger), seed=0))}
    assert made == {
        "primer, k = 20: recovered": False,
        "primer, k = 20: lower 95 % end": False,
        "primer, k = 20: KL": False,
        "primer, k = 20: multi-hop": False,
    }
