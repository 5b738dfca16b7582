"""Chats beside users whose turns become facts: what is compared, what voids a run, what the table says."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from inferscale_server.bench import encoding, server_process
from inferscale_server.bench.comparator import Reply
from inferscale_server.bench.infer_load import Taken, infer_table, summary
from inferscale_server.bench.load_loop import Timed
from inferscale_server.bench.server_process import ServerChoice
from inferscale_server.cli import main
from inferscale_server.errors import StartupError
from tests.bench.invented import long_session, write
from tests.bench.small_server import small_server

REPLY = Reply("auto", "kv", "encoded", 300.0, 100.0, 20, 500, 0, 500)
FAST = ("--rate", "100", "--seconds", "0.3", "--facts", "5")


def chats(*first_token_ms: float) -> list[Timed]:
    return [Timed(ms, 2 * ms, REPLY) for ms in first_token_ms]


def test_chats_beside_turns_are_judged_by_the_same_chats_beside_nothing() -> None:
    taken = [Taken(2, Counter(stored=3)), Taken(1, Counter(stored=1, failed=1))]
    run = summary(chats(100, 100, 200), chats(119, 110, 410), taken)
    middle, last = run.ratios
    assert (middle.value, middle.met, last.value, last.met) == (1.19, True, 2.05, False)
    assert [cell.load for cell in run.cells] == ["idle", "infer"] and run.complaints == ()
    assert (run.turns, run.outcomes) == (3, {"stored": 4, "failed": 1})


def test_a_run_without_chats_or_without_turns_is_void() -> None:
    assert summary([], [], [Taken(1, Counter())]).complaints == ("no chat came: raise --seconds or --rate",)
    (complaint,) = summary(chats(1.0), chats(1.0), [Taken(0, Counter())]).complaints
    assert "no turn was added" in complaint


def test_the_table_counts_turns_and_what_became_of_their_facts() -> None:
    table = infer_table(summary(chats(1.0), chats(1.0), [Taken(5, Counter(stored=6, failed=1))]))
    assert [list(column.cells) for column in table.columns] == [["5"], ["failed 1, stored 6"]]


def test_infer_compares_chats_with_and_without_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    data, figures, plot = write(tmp_path, changed=long_session(10)), tmp_path / "figures", tmp_path / "plot.svg"
    with small_server() as server, pytest.raises(SystemExit) as ended:
        files = ("--json", str(figures), "--plot", str(plot))
        main(["bench", "load", "--data", str(data), "--base-url", server.url, "--infer", "3", *FAST, *files])
    assert ended.value.code == 0
    read = json.loads(figures.read_text())
    idle, busy = read["cells"]
    assert (idle["load"], busy["load"]) == ("idle", "infer") and idle["chats"] == busy["chats"] > 10
    assert read["turns"] == len(server.inferred) >= 3 and read["outcomes"]["stored"] == read["turns"]
    assert len({sent["user_id"] for sent in server.inferred}) == 3
    assert all(len(sent["messages"]) == 1 and sent["messages"][0]["role"] == "user" for sent in server.inferred)
    assert len({chat["question"] for chat in server.chats}) == len(server.chats)
    assert "<svg" in plot.read_text() and "Turns added beside the chats" in capsys.readouterr().out


def test_a_server_of_our_own_makes_facts_with_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choices: list[ServerChoice] = []

    def noted(choice: ServerChoice, tell: object) -> NoReturn:
        choices.append(choice)
        raise StartupError("enough seen")

    monkeypatch.setattr(server_process, "chosen_server", noted)
    with pytest.raises(SystemExit):
        main(["bench", "load", "--data", str(write(tmp_path, changed=long_session(10))), "--infer", "1"])
    given = dict(pairwise(choices[0].options))
    assert given["--extractor"] == "llm"


def test_a_server_whose_model_writes_nothing_is_not_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path, changed=long_session(10))
    with small_server(extractor="verbatim") as server, pytest.raises(SystemExit) as ended:
        main(["bench", "load", "--data", str(data), "--base-url", server.url, "--infer", "1", *FAST])
    assert ended.value.code != 0 and server.chats == [] and server.inferred == []
    assert "--extractor llm" in capsys.readouterr().err
