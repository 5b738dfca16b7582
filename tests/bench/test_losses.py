"""Requests that fail: counted beside those that are answered, until most fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from inferscale_sdk import APITimeoutError, InferScaleClient
from inferscale_server.bench import encoding, isolation, load
from inferscale_server.bench.infer_load import infer_table, summary
from inferscale_server.bench.isolation import run_isolation
from inferscale_server.bench.load_arrivals import Arrival
from inferscale_server.bench.load_cell import LoadCell
from inferscale_server.bench.load_loop import Traffic, open_loop
from inferscale_server.bench.losses import IN_A_ROW, Losses
from inferscale_server.bench.throughput_tables import load_table
from inferscale_server.cli import main
from tests.bench.invented import long_session, write
from tests.bench.small_server import SmallServer, small_server


def late() -> NoReturn:
    """A request that is not answered in time."""
    raise APITimeoutError("too late")


def answered(losses: Losses, name: str, times: int) -> None:
    for _ in range(times):
        assert losses.tried(name, lambda: "yes") == "yes"


def test_a_failure_is_counted_and_told_beside_what_was_answered() -> None:
    losses = Losses()
    answered(losses, "kv", 3)
    assert losses.tried("kv", late) is None
    losses.check("kv")
    assert (losses.count("kv"), losses.count("text")) == (1, 0)
    assert losses.complaints == ["kv: 1 of 4 failed, such as: too late"]


def test_what_is_no_error_of_the_client_is_raised() -> None:
    losses = Losses()
    with pytest.raises(ZeroDivisionError):
        losses.tried("kv", lambda: 1 // 0)
    assert losses.complaints == []


def test_many_failures_in_a_row_end_the_run_whatever_was_answered_before() -> None:
    losses = Losses()
    answered(losses, "kv", 100)
    for name in ("kv", "text", "off", "kv"):
        assert losses.tried(name, late) is None
    assert IN_A_ROW == 5
    with pytest.raises(APITimeoutError):
        losses.tried("mem0", late)


def test_an_answer_breaks_the_row() -> None:
    losses = Losses()
    for name in [*"abcd", "off", *"efgh"]:
        losses.tried(name, late if name != "off" else lambda: "yes")
    assert sum(losses.count(name) for name in "abcdefgh") == 8


def test_what_may_fail_at_one_moment_ends_no_run() -> None:
    losses = Losses(at_once=16)
    answered(losses, "kv", 40)
    assert [losses.tried("kv", late) for _ in range(16)] == [None] * 16
    losses.check("kv")


def test_a_name_of_which_most_fail_ends_the_run_though_others_are_answered() -> None:
    losses = Losses()
    for _ in range(4):
        answered(losses, "kv", 1)
        losses.tried("text", late)
    answered(losses, "kv", 1)
    with pytest.raises(APITimeoutError):
        losses.tried("text", late)


def test_few_requests_are_judged_when_all_were_sent() -> None:
    losses = Losses()
    losses.tried("text", late)
    answered(losses, "kv", 1)
    losses.check("kv")
    with pytest.raises(APITimeoutError):
        losses.check("text")


def test_an_open_loop_sends_no_more_when_a_chat_raises() -> None:
    asked: list[str] = []

    def ask(question: str) -> NoReturn:
        asked.append(question)
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        open_loop([Arrival(0.0), Arrival(0.2), Arrival(0.2)], Traffic(iter("abc"), ask, lambda: None))
    assert asked == ["a"]


def columns(cells: list[LoadCell]) -> list[str]:
    """The heads of the table."""
    return [str(column.header) for column in load_table(cells).columns]


def test_the_count_has_a_column_only_when_something_failed() -> None:
    whole, part = (LoadCell("kv", 10, 1.0, 1.0, 1.0, 1.0, {"kv": 10}, failed) for failed in (0, 2))
    assert "failed" not in columns([whole, whole])
    assert columns([whole, part])[-1] == "failed"
    assert list(load_table([whole, part]).columns[-1].cells) == ["0", "2"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setattr(load, "IDLE_CHATS_AT_LEAST", 30)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "conversations").mkdir()
    return write(tmp_path / "conversations", changed=long_session(45))


def bench(server: SmallServer, data: Path, *argv: str) -> int:
    """`inferscale bench`; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", *argv, "--data", str(data), "--base-url", server.url])
    assert isinstance(ended.value.code, int)
    return ended.value.code


COMMANDS: dict[str, tuple[str, ...]] = {
    "load": ("--facts", "5", "--rate", "100", "--seconds", "0.3", "--encoded-facts", "20"),
    "throughput": ("--facts", "5", "--concurrency", "4", "--rounds", "3", "--tokens", "8"),
    "ttft": ("--questions", "3"),
    "sessions": ("--conversations", "3", "--turns", "3", "--facts", "5"),
    "tiers": ("--users", "5", "--facts", "5"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_one_request_that_fails_is_counted_and_the_rest_is_measured(
    command: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = tmp_path / "figures", tmp_path / "plot.svg"
    with small_server(fails=lambda number: number == 20) as server:
        options = (*COMMANDS[command], "--json", str(figures), "--plot", str(plot))
        assert bench(server, data, command, *options) == 1
    read: dict[str, Any] = json.loads(figures.read_text())
    told = capsys.readouterr()
    assert sum(row["failed"] for row in read["totals" if command == "sessions" else "cells"]) == 1
    (complaint,) = read["complaints"]
    assert complaint in told.err and complaint.endswith("failed, such as: not this one")
    assert "failed" in told.out and "<svg" in plot.read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_answers_nothing_any_more_ends_the_run(
    command: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures"
    with small_server(fails=lambda number: number > 20) as server:
        assert bench(server, data, command, *COMMANDS[command], "--json", str(figures)) == 2
    assert capsys.readouterr().err.endswith("inferscale: not this one\n") and not figures.exists()


def test_turns_that_fail_are_counted(data: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    options = ("--infer", "2", "--facts", "5", "--rate", "100", "--seconds", "0.5", "--json", str(figures))
    with small_server(fails=lambda number: number > 10 and number % 20 == 0) as server:
        assert bench(server, data, "load", *options) == 1
    read = json.loads(figures.read_text())
    failed = read["failed_turns"] + sum(cell["failed"] for cell in read["cells"])
    assert failed >= 2 and read["turns"] == len(server.inferred)
    assert all("failed, such as: not this one" in complaint for complaint in read["complaints"])


def test_the_table_of_turns_tells_those_that_failed() -> None:
    losses = Losses()
    answered(losses, "turns", 1)
    losses.tried("turns", late)
    table = infer_table(summary([], [], [], losses))
    assert [str(column.header) for column in table.columns] == ["turns", "facts by outcome", "failed"]
    assert list(table.columns[2].cells) == ["1"]


def test_an_attack_goes_on_after_a_trial_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setattr(isolation, "WARM_UP_TRIALS", 1)
    with small_server(fails=lambda number: number == 8) as server, InferScaleClient(base_url=server.url) as client:
        run = run_isolation(client, 4, lambda text: None)
    assert len(run.guesses) == 3 * 4
    assert run.complaints[0] == "trials: 1 of 4 failed, such as: not this one"
    assert len(server.deleted) == 5
