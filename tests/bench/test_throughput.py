"""Closed loops over a small server: what is asked, what is counted, what voids a run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from inferscale_server.bench import encoding
from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.comparator import Reply
from inferscale_server.bench.throughput import Grid, endless
from inferscale_server.bench.throughput_cell import (
    Setting,
    ThroughputCell,
    over_others,
    throughput_cell,
    throughput_complaints,
    throughput_ratios,
)
from inferscale_server.cli import main
from tests.bench.invented import long_session, write
from tests.bench.small_server import SmallServer, small_server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the encoding's progress without a pause."""
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")


PROMISED = Setting(50, 16, 8)


def reply(latency_ms: float = 100.0, asked: str = "kv", served: str = "kv", as_text: int = 0) -> Reply:
    """An answer with 500 tokens of memory."""
    return Reply(asked, served, "because", latency_ms, None, 20, 500 - as_text, as_text, 500)


def cell(system: str, wall_s: float, setting: Setting = PROMISED) -> ThroughputCell:
    """32 answers in so many seconds."""
    return throughput_cell(system, setting, [reply(asked=system, served=system)] * 32, wall_s)


def bench(server: SmallServer, data: Path, *argv: str) -> int:
    """`inferscale bench throughput`; returns its exit code."""
    write(data, changed=long_session(45))
    options = ("--data", str(data), "--base-url", server.url, "--rounds", "2", "--concurrency", "3")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "throughput", *options, *argv])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_cell_counts_answers_over_the_whole_loop() -> None:
    found = throughput_cell("kv", PROMISED, [reply(float(ms)) for ms in range(1, 101)], 25.0)
    assert (found.answers_per_s, found.latency_ms, found.latency_p99_ms) == (4.0, 50.5, 99.0)
    assert (found.prefilled_tokens, found.injected_tokens, found.injected_share, found.otherwise) == (20, 500, 1.0, 0)


def test_ratios_are_of_answers_a_second_in_the_same_setting() -> None:
    cells = [
        cell("kv", 8.0),
        cell("text", 48.0),
        cell("kv", 1.0, Setting(50, 1, 8)),
        cell("text", 2.0, Setting(5, 16, 8)),
    ]
    assert over_others(cells, PROMISED) == {"text": 6.0}
    assert over_others(cells, Setting(5, 16, 8)) == over_others(cells, Setting(50, 1, 8)) == {}


def test_the_promise_is_judged_at_most_facts_and_sixteen_at_once() -> None:
    long = Setting(50, 16, 32)
    cells = [cell("kv", 8.0), cell("text", 48.0), cell("mem0", 40.0), cell("kv", 16.0, long), cell("text", 72.0, long)]
    assert throughput_ratios(cells) == [
        Ratio("kv / text, k = 50, 16 at once, 8 tokens", 6.0, 6.0, True),
        Ratio("kv / mem0, k = 50, 16 at once, 8 tokens", 5.0, 6.0, True),
        Ratio("kv / text, k = 50, 16 at once, 32 tokens", 4.5, 4.5, True),
    ]
    assert throughput_ratios([cell("kv", 8.0), cell("off", 7.0)]) == []
    assert throughput_ratios([cell("kv", 8.0, Setting(50, 4, 8)), cell("text", 9.0, Setting(50, 4, 8))]) == []


def test_a_loop_that_was_served_otherwise_or_not_injected_is_void() -> None:
    otherwise = throughput_cell("kv", PROMISED, [reply(), reply(served="text", as_text=500)], 1.0)
    too_little = throughput_cell("kv", PROMISED, [reply(as_text=6)], 1.0)
    assert [*throughput_complaints([otherwise, too_little, cell("text", 1.0)])] == [
        "1 of 2 answers of kv with k = 50, 16 at once were not served as asked for",
        "only 98.8% of the memory tokens of kv with k = 50, 16 at once were injected",
    ]


def test_no_question_comes_twice_in_the_same_words() -> None:
    asked = [question for system in range(3) for question in islice(endless(["Where?", "When?"], system), 9)]
    assert len(set(asked)) == 27 and asked[0] == "Where?"


def test_a_grid_goes_through_everything() -> None:
    assert Grid((5, 50), (1, 16), (8,), 2).settings() == [
        Setting(5, 1, 8), Setting(5, 16, 8), Setting(50, 1, 8), Setting(50, 16, 8),
    ]  # fmt: skip


def test_every_setting_is_asked_of_all_modes_and_counted_without_the_warm_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = tmp_path / "figures", tmp_path / "plot.svg"
    with small_server() as server:
        options = ("--facts", "5", "--facts", "50", "--tokens", "8", "--json", str(figures), "--plot", str(plot))
        assert bench(server, tmp_path, *options) == 0
    read = json.loads(figures.read_text())
    told = [(one["system"], one["k"], one["concurrency"], one["answers"]) for one in read["cells"]]
    assert told == [(mode, k, 3, 6) for k in (5, 50) for mode in ("off", "text", "kv")]
    assert len(server.chats) == 6 * (6 + 2) and len({chat["question"] for chat in server.chats}) == len(server.chats)
    assert "<svg" in plot.read_text() and "Throughput, closed loop" in capsys.readouterr().out


def test_memory_that_is_not_injected_fails_the_throughput_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_server(never_injects=True) as server:
        assert bench(server, tmp_path, "--facts", "5", "--tokens", "8") == 1
    assert "6 of 6 answers of kv with k = 5, 3 at once were not served as asked for" in capsys.readouterr().err


def test_more_facts_than_there_are_is_one_line_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_server() as server:
        assert bench(server, tmp_path, "--limit", "20", "--facts", "5", "--facts", "50") == 2
    assert server.facts == server.chats == []
    told = "option 'facts': value 50 is never reached: only 20 facts are loaded"
    assert capsys.readouterr().err == f"inferscale: {told}\n"


def test_without_a_choice_as_many_facts_are_recalled_as_there_are(tmp_path: Path) -> None:
    with small_server() as server:
        assert bench(server, tmp_path, "--limit", "12", "--tokens", "8") == 0
    assert {chat["k"] for chat in server.chats} == {5, 10}
