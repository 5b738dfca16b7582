"""What is measured against what, what is measured again, and what a folder of finished rows refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferscale_server.bench.accuracy.case import Haystack
from inferscale_server.bench.accuracy.cell import ALL, cells, trios
from inferscale_server.bench.accuracy.failure import Failure
from inferscale_server.bench.accuracy.ledger import ROWS, SETTINGS, Ledger
from inferscale_server.bench.accuracy.measure import Measuring, Progress
from inferscale_server.errors import ConfigError, Unavailable
from tests.bench.ten_questions import CASES, TEN, TenQuestions

QUIET = Progress(lambda text: None, lambda count: None)
ASKED = {"questions": "ten"}


def measure(model: TenQuestions, folder: Path, variant: str = "primer", ks: tuple[int, ...] = (20,)) -> list[Failure]:
    return Measuring(model, variant, Ledger(folder, ASKED)).run([TEN], ks, 1, QUIET)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]


def test_a_variant_with_another_prompt_is_compared_with_its_own_prompt_without_memory(tmp_path: Path) -> None:
    measure(TenQuestions(), tmp_path)
    other = TenQuestions("g", frame="Be brief. ")
    measure(other, tmp_path, "brief")
    assert {mode for _, mode, _ in other.asked} == {"off", "text", "kv"}
    found = trios(Ledger(tmp_path, ASKED))
    assert {trio.off.variant for trio in found if trio.kv.variant == "brief"} == {"brief"}
    assert all(trio.off.digest == trio.text.frame_digest == trio.kv.frame_digest for trio in found)


def test_off_is_measured_once_for_all_numbers_of_facts(tmp_path: Path) -> None:
    model = TenQuestions()
    measure(model, tmp_path, ks=(5, 20))
    assert sum(mode == "off" for _, mode, _ in model.asked) == 10 and len(trios(Ledger(tmp_path, ASKED))) == 20


def test_a_kv_row_is_kept_behind_the_rows_that_it_is_compared_with(tmp_path: Path) -> None:
    measure(TenQuestions(), tmp_path)
    assert [row["mode"] for row in lines(tmp_path)] == ["off", "text", "kv"] * 10


@pytest.mark.parametrize("lost", ["off", "text", "kv"])
def test_a_question_that_lost_a_row_is_measured_again(tmp_path: Path, lost: str) -> None:
    measure(TenQuestions(), tmp_path)
    kept = [row for row in lines(tmp_path) if (row["case"], row["mode"]) != ("ten/3", lost)]
    (tmp_path / ROWS).write_text("".join(json.dumps(row) + "\n" for row in kept))
    again = TenQuestions()
    assert measure(again, tmp_path) == [] and {question for question, _, _ in again.asked} == {"Question 3?"}
    assert len(trios(Ledger(tmp_path, ASKED))) == 10


def test_every_user_is_let_go_when_its_questions_are_done_failed_or_not(tmp_path: Path) -> None:
    model = TenQuestions(broken=frozenset({"Question 1?"}))
    halves = [Haystack("a", TEN.facts, CASES[:5]), Haystack("b", TEN.facts, CASES[5:])]
    Measuring(model, "primer", Ledger(tmp_path, ASKED)).run(halves, (20,), 2, QUIET)
    assert model.taken_in == 2 and model.users == set()


def test_facts_that_do_not_fit_fail_their_own_questions_and_no_others(tmp_path: Path) -> None:
    class Small(TenQuestions):
        def take_in(self, facts, tell):  # type: ignore[no-untyped-def]
            if len(facts) > 1:
                raise Unavailable("only 1 of 2 facts got KV")
            return super().take_in(facts, tell)

    halves = [Haystack("a", TEN.facts * 2, CASES[:5]), Haystack("b", TEN.facts, CASES[5:])]
    failed = Measuring(Small(), "primer", Ledger(tmp_path, ASKED)).run(halves, (5, 20), 1, QUIET)
    assert {(one.case, one.k) for one in failed} == {(case.key, k) for case in CASES[:5] for k in (5, 20)}
    assert len(trios(Ledger(tmp_path, ASKED))) == 10


@pytest.mark.parametrize("key", ["recipe", "embedder", "tail_tokens", "backend", "vllm"])
def test_rows_of_another_server_are_refused_by_what_differs(tmp_path: Path, key: str) -> None:
    ledger = Ledger(tmp_path, ASKED)
    ledger.serves("primer", {"fingerprint": "f", key: 1, "machine": {"cpu_cores": 2}})
    again = Ledger(tmp_path, ASKED)
    again.serves("primer", {"fingerprint": "f", key: 1, "machine": {"cpu_cores": 4}})
    assert again.variants["primer"]["machine"] == {"cpu_cores": 4}
    with pytest.raises(ConfigError, match=f"encoded otherwise: {key} was 1 and is 2"):
        again.serves("primer", {"fingerprint": "f", key: 2})


def as_before(folder: Path) -> None:
    """The folder as an earlier version left it: fingerprints alone, and rows that do not name their off row."""
    read = json.loads((folder / SETTINGS).read_text())
    fingerprints = {name: about["fingerprint"] for name, about in read.pop("variants").items()}
    (folder / SETTINGS).write_text(json.dumps(read | {"fingerprints": fingerprints}))
    rows = [{key: value for key, value in row.items() if key != "frame_digest"} for row in lines(folder)]
    (folder / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_folder_of_an_earlier_version_goes_on_with_all_variants_of_the_same_prompt(tmp_path: Path) -> None:
    measure(TenQuestions(), tmp_path)
    measure(TenQuestions("g"), tmp_path, "isolated")
    before = cells(trios(Ledger(tmp_path, ASKED)), 0)
    as_before(tmp_path)
    again = TenQuestions("g")
    assert measure(again, tmp_path, "isolated") == [] and again.asked == []
    assert cells(trios(Ledger(tmp_path, ASKED)), 0) == before


def test_in_a_folder_of_an_earlier_version_a_variant_of_another_prompt_is_measured_again(tmp_path: Path) -> None:
    measure(TenQuestions(), tmp_path)
    measure(TenQuestions("g", frame="Be brief. "), tmp_path, "brief")
    kept = [row for row in lines(tmp_path) if (row["mode"], row["variant"]) != ("off", "brief")]
    (tmp_path / ROWS).write_text("".join(json.dumps(row) + "\n" for row in kept))
    as_before(tmp_path)
    assert {trio.kv.variant for trio in trios(Ledger(tmp_path, ASKED))} == {"primer"}
    again = TenQuestions("g", frame="Be brief. ")
    measure(again, tmp_path, "brief")
    assert {mode for _, mode, _ in again.asked} == {"off", "kv"}
    whole = [cell for cell in cells(trios(Ledger(tmp_path, ASKED)), 0) if cell.category == ALL]
    assert {(cell.variant, cell.questions) for cell in whole} == {("primer", 10), ("brief", 10)}


def test_answers_of_an_earlier_version_are_not_averaged_with_others(tmp_path: Path) -> None:
    Ledger(tmp_path, {"answers": True})
    with pytest.raises(ConfigError, match="made with answered = None"):
        Ledger(tmp_path, {"answers": True, "answered": "behind the same prompt"})
