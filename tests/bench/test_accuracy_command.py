"""`inferscale bench accuracy` from the command line to its exit code, against a small server."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from inferscale_server.bench import encoding
from inferscale_server.bench.accuracy.ledger import ROWS
from inferscale_server.cli import main
from inferscale_server.cli.bench_accuracy import variants_of
from inferscale_server.cli.bench_setting import write_json
from inferscale_server.errors import ConfigError
from tests.bench.invented import write
from tests.bench.small_server import SmallServer, small_server
from tests.bench.ten_questions import CASES, LN2

Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the benchmark on the ten questions; returns its exit code."""
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "240")
    lines = [
        {"question": case.question, "answer": case.answer, "facts": ["A fact."], "category": case.category}
        for case in CASES
    ]
    data = tmp_path / "ten.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")

    def run(server: SmallServer, *argv: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["bench", "accuracy", "--data", str(data), "--base-url", server.url, *argv])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def test_figures_table_and_plot_are_left(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, plot = tmp_path / "new" / "f.json", tmp_path / "other" / "p.svg"
    with small_server() as server:
        assert run(server, "--k", "20", "--k", "50", "--json", str(figures), "--plot", str(plot)) == 0
    read = json.loads(figures.read_text())
    whole = [cell for cell in read["cells"] if cell["category"] == "all"]
    assert [(cell["k"], cell["questions"], cell["variant"]) for cell in whole] == [
        (20, 10, "as served"),
        (50, 10, "as served"),
    ]
    assert whole[0]["recovered"]["value"] == pytest.approx(0.75)
    assert whole[0]["kl"]["value"] == pytest.approx(LN2 / 8)
    assert len(read["rows"]) == 2 * 10 * 3 and read["failed"] == []
    assert read["settings"]["seed"] == 0 and read["settings"]["top"] == 100
    served = read["variants"]["as served"]
    assert (served["fingerprint"], served["embedder"], served["tail_tokens"]) == ("f", "letters", 0)
    assert served["machine"]["cpu_cores"] >= 1
    assert read["promises"] == []  # they speak of LoCoMo alone
    assert "<svg" in plot.read_text()
    out = capsys.readouterr().out
    assert "0.75 (" in out and "multi-hop" in out and "Promises" not in out


def test_promises_are_judged_on_locomo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "f.json"
    asked = [{"question": case.question, "answer": case.answer, "category": 1} for case in CASES]
    data = str(write(tmp_path, changed={"qa": asked}))
    with small_server() as server, pytest.raises(SystemExit) as ended:
        main(["bench", "accuracy", "--data", data, "--base-url", server.url, "--k", "20", "--json", str(figures)])
    promised = {one["name"]: one["met"] for one in json.loads(figures.read_text())["promises"]}
    assert ended.value.code == 0 and "as served, k = 20: recovered" in promised
    assert "Promises" in capsys.readouterr().out


def test_the_tables_are_readable_on_eighty_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with small_server() as server:
        assert run(server, "--k", "20", "--k", "50") == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert max(map(len, rows)) <= 80 and len(rows) == 2 * 6  # a line a row, in each of two tables
    assert all(re.match(r"│ (20|50) │ as served │ (all|multi-hop|single-hop) ", row) for row in rows)
    assert (
        sum(bool(re.search(r"0\.75 \(0\.\d\d…\d\.\d\d\) │ 0\.\d{3} \(0\.\d{3}…0\.\d{3}\) ", row)) for row in rows) >= 2
    )


def test_a_figure_of_fewer_than_five_questions_has_no_interval(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server() as server:
        assert run(server, "--k", "20", "--limit", "2") == 0
    out = capsys.readouterr().out
    assert "0.75" in out and "…" not in out


def test_each_number_of_facts_is_measured_unless_told(run: Run, tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    with small_server() as server:
        assert run(server, "--limit", "2", "--json", str(figures)) == 0
    cells = json.loads(figures.read_text())["cells"]
    assert [(cell["k"], cell["questions"]) for cell in cells if cell["category"] == "all"] == [(5, 2), (20, 2), (50, 2)]


@pytest.fixture
def unharmed() -> Iterator[None]:
    """A signal that nobody handles fails the test, and does not end the tests. A job in a shell's background, as these
    tests may be one, begins with SIGINT ignored."""
    term = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, term)
    signal.signal(signal.SIGINT, interrupt)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_told_to_stop_leaves_no_user_and_goes_on_later(run: Run, tmp_path: Path, number: int) -> None:
    scored, args = count(1), ("--k", "20", "--threads", "1", "--out", str(tmp_path / "o"))
    with small_server(on_score=lambda: signal.raise_signal(number) if next(scored) == 15 else None) as server:
        assert run(server, *args) == 128 + number
        assert len(server.deleted) == len(server.owned) == 1
    kept = len((tmp_path / "o" / ROWS).read_text().splitlines())
    assert 0 < kept < 30
    again, figures = count(1), tmp_path / "f.json"
    with small_server(on_score=lambda: next(again)) as server:
        assert run(server, *args, "--json", str(figures)) == 0
    assert next(again) == 31 - kept
    assert [cell["questions"] for cell in json.loads(figures.read_text())["cells"]] == [10, 5, 5]


def test_a_second_run_into_the_same_folder_measures_nothing_again(run: Run, tmp_path: Path) -> None:
    with small_server() as server:
        assert run(server, "--k", "20", "--limit", "4", "--out", str(tmp_path / "o")) == 0
    with small_server() as server:
        assert run(server, "--k", "20", "--limit", "4", "--out", str(tmp_path / "o")) == 0
        assert server.facts == []


def test_with_answers_every_mode_answers_behind_its_own_prompt(run: Run, tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    with small_server() as server:
        assert run(server, "--k", "20", "--limit", "2", "--answers", "--json", str(figures)) == 0
        assert server.chats == []  # a chat without memory has another prompt
    rows = json.loads(figures.read_text())["rows"]
    assert {(row["mode"], row["answer"]) for row in rows} == {(mode, "Bruno") for mode in ("off", "text", "kv")}


def test_memory_that_is_not_injected_fails_the_benchmark(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(never_injects=True) as server:
        assert run(server, "--k", "20", "--limit", "1") == 1
    assert "ten/1, as served, k = 20: scoring failed: the memory is not all encoded" in capsys.readouterr().err


def test_facts_that_the_server_refuses_fail_their_own_questions(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "ten.jsonl").open("a") as file:
        file.write(
            json.dumps({"question": "Question 11?", "answer": "a", "facts": ["A fact that is too long."]}) + "\n"
        )
    figures = tmp_path / "f.json"
    with small_server(longest=10) as server:
        assert run(server, "--k", "20", "--json", str(figures)) == 1
    assert "ten/11, as served, k = 20: the facts were refused: facts[0]: too long" in capsys.readouterr().err
    read = json.loads(figures.read_text())
    assert [cell["questions"] for cell in read["cells"] if cell["category"] == "all"] == [10]


def test_a_figure_that_is_no_number_is_null_in_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "f.json", {"cpu": "one"}, {"cells": ({"recovered": float("nan"), "kl": 0.5},)})
    told = {"machine": {"cpu": "one"}, "cells": [{"recovered": None, "kl": 0.5}]}
    assert json.loads((tmp_path / "f.json").read_text()) == told


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--recipe", "primer"), "a server that runs already has its own recipe"),
        (("--json", f"{__file__}/f.json"), "can be made"),
        (("--plot", f"{__file__}/p.png"), "can be made"),
        (("--plot", "p.txt"), "'p.txt' does not end in .png, .svg, .pdf"),
        (("--out", str(Path(__file__))), "cannot be written"),
        (("--judge-url", "http://127.0.0.1:9/v1"), "a judge needs both --judge-url and --judge-model"),
        (("--judge-url", "127.0.0.1:9/v1", "--judge-model", "m"), "does not begin with http:// or https://"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    run: Run, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], complaint: str
) -> None:
    with small_server() as server:
        assert run(server, *argv) == 2
        assert server.facts == []
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["", "--tail-tokens 64", "primer 'x", "primr", "session+session --k 5"])
def test_what_is_no_recipe_starts_no_server(capsys: pytest.CaptureFixture[str], recipe: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "accuracy", "--recipe", "primer", "--recipe", recipe])
    assert ended.value.code == 2
    assert "option 'recipe'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("primer --tail-token 64", "serve has no option '--tail-token'"),
        ("primer 64", "serve has no option '64'"),
        ("window --window", "--window needs a value"),
        ("window --window 0", "option 'window': value '0' is not valid"),
        ("primer --fact-wrapper '- fact'", "it must be one line that holds {fact} once"),
        ("primer --kv-codec-device", "codes on the device are int8"),
        ("primr", "option 'recipe': value 'primr' is not valid"),
        ("primer+primer", "option 'recipe': value 'primer+primer' is not valid"),
    ],
)
def test_what_serve_would_refuse_is_refused_before_the_first_server(written: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        variants_of(["isolated", written], None)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "written",
    [
        "primer",
        "window --window 50",
        "primer+session --primer-facts=5",
        "primer --kv-codec int8 --kv-codec-device",
        "isolated --memory-place start --fact-wrapper '* {fact}' --tail-tokens 64",
    ],
)
def test_whatever_serve_takes_is_a_variant(written: str) -> None:
    [variant] = variants_of([written], None)
    assert variant.options[0] == "--recipe" and variant.name == " ".join(variant.options[1:])
