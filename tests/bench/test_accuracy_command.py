"""`inferscale bench accuracy` from the command line to its exit code, against a small server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from inferscale_server.bench import encoding
from inferscale_server.cli import main
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
    figures, plot = tmp_path / "f.json", tmp_path / "p.svg"
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
    promised = {one["name"]: one["met"] for one in read["promises"]}
    assert promised["as served, k = 20: recovered"] is False
    assert "<svg" in plot.read_text()
    out = capsys.readouterr().out
    assert "0.75 (" in out and "as served, k = 20: recovered" in out and "multi-hop" in out


def test_each_number_of_facts_is_measured_unless_told(run: Run, tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    with small_server() as server:
        assert run(server, "--limit", "2", "--json", str(figures)) == 0
    cells = json.loads(figures.read_text())["cells"]
    assert [(cell["k"], cell["questions"]) for cell in cells if cell["category"] == "all"] == [(5, 2), (20, 2), (50, 2)]


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


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--recipe", "primer"), "a server that runs already has its own recipe"),
        (("--judge-url", "http://127.0.0.1:9/v1"), "a judge needs both --judge-url and --judge-model"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    run: Run, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], complaint: str
) -> None:
    with small_server() as server:
        assert run(server, *argv) == 2
        assert server.facts == []
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["", "--tail-tokens 64", "primer 'x"])
def test_what_is_no_recipe_starts_no_server(capsys: pytest.CaptureFixture[str], recipe: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "accuracy", "--recipe", recipe])
    assert ended.value.code == 2
    assert "option 'recipe'" in capsys.readouterr().err
