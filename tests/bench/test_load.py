"""Open loops: arrivals that do not wait, and what encoding beside chats costs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, groupby, islice
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.bench import encoding, load
from inferscale_server.bench.comparator import Reply, ServerMemory
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.bench.load import ROUNDS, WARM_UP_CHATS, Chats, Load, in_turns, numbered
from inferscale_server.bench.load_arrivals import Arrival, arrivals
from inferscale_server.bench.load_cell import (
    LoadCell,
    empty_loads,
    encoding_ratios,
    load_cell,
    load_cells,
    load_complaints,
    mode_ratios,
)
from inferscale_server.bench.load_loop import Timed, Traffic, open_loop
from inferscale_server.cli import main
from tests.bench.invented import long_session, write
from tests.bench.small_server import SmallServer, small_server

REPLY = Reply("auto", "kv", "encoded", 300.0, 100.0, 20, 500, 0, 500)


def cell(load: str, median_ms: float, p99_ms: float = 100.0, served: str = "kv") -> LoadCell:
    """Ten chats."""
    return LoadCell(load, 10, median_ms, p99_ms, median_ms, p99_ms, {served: 10})


def test_arrivals_keep_their_rate_and_are_the_same_every_time() -> None:
    first = list(arrivals(5.0, 200.0, 0.2))
    assert first == list(arrivals(5.0, 200.0, 0.2)) and first != list(arrivals(5.0, 200.0, 0.2, seed=2))
    assert 900 < len(first) < 1100 and 150 < sum(one.adds for one in first) < 250
    assert [one.at_s for one in first] == sorted(one.at_s for one in first) and first[-1].at_s < 200.0


def test_every_arrival_is_sent_and_every_chat_has_a_question_of_its_own() -> None:
    asked: list[str] = []
    added: list[int] = []

    def ask(question: str) -> Reply:
        asked.append(question)
        return REPLY

    traffic = Traffic((str(at) for at in count()), ask, lambda: added.append(1))
    timed = open_loop([Arrival(0.0), Arrival(0.0, adds=True), Arrival(0.0)], traffic)
    assert sorted(asked) == ["0", "1"] and len(added) == 1
    assert [one.first_token_ms >= 100.0 and one.latency_ms >= 300.0 for one in timed] == [True, True]


def test_waiting_for_the_turn_counts() -> None:
    overdue = open_loop([Arrival(-2.0)], Traffic(iter("a"), lambda question: REPLY, lambda: None))
    assert overdue[0].first_token_ms >= 2100.0 and overdue[0].latency_ms >= 2300.0


def test_a_loop_that_is_over_sends_no_more() -> None:
    left: Iterator[bool] = iter([False, True])
    timed = open_loop(
        [Arrival(0.0)] * 5, Traffic(iter("abcde"), lambda question: REPLY, lambda: None), lambda: next(left)
    )
    assert len(timed) == 1


def test_an_add_that_fails_fails_the_loop() -> None:
    def add() -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        open_loop([Arrival(0.0, adds=True)], Traffic(iter(""), lambda question: REPLY, add))


def test_a_cell_holds_medians_and_the_last_percentile() -> None:
    found = load_cell("auto", [Timed(float(ms), 2.0 * ms, REPLY) for ms in range(1, 101)])
    assert (found.first_token_ms, found.first_token_p99_ms, found.latency_ms) == (50.5, 99.0, 101.0)
    assert found.served == {"kv": 100}


def test_auto_is_judged_by_the_better_fixed_mode() -> None:
    (ratio,) = mode_ratios([cell("auto", 105.0), cell("kv", 100.0), cell("text", 400.0)])
    assert ratio.value == 1.05 and ratio.met
    assert mode_ratios([cell("kv", 100.0)]) == []


def test_encoding_is_judged_by_the_idle_server() -> None:
    middle, last = encoding_ratios(cell("idle", 100.0, 150.0), cell("encoding", 121.0, 299.0))
    assert (middle.value, middle.met, last.met) == (1.21, False, True)


def test_answers_of_a_fixed_mode_must_be_served_in_it() -> None:
    assert load_complaints([cell("auto", 1.0, served="text"), cell("text", 1.0, served="text")]) == []
    assert load_complaints([cell("kv", 1.0, served="text")]) == ["10 of 10 answers of mode kv were served otherwise"]


def test_facts_are_told_apart_by_a_number_when_there_are_too_few() -> None:
    facts = [DatedFact("a", "Ilse", datetime(2023, 5, 8, tzinfo=UTC)), DatedFact("b")]
    made = list(numbered(facts, 5))
    assert [fact.text for fact in made] == ["a", "b", "a (1)", "b (1)", "a (2)"] and made[2].speaker == "Ilse"
    assert len(list(islice(numbered(facts, 10**9), 3))) == 3


def test_a_load_without_a_chat_is_told() -> None:
    timed = [Timed(1.0, 2.0, REPLY)]
    assert empty_loads({"auto": timed, "kv": [], "encoding": []}) == [
        "no chat came under the load 'kv': raise --seconds or --rate",
        "no chat came under the load 'encoding': raise --encoded-facts or --rate",
    ]
    assert [one.load for one in load_cells({"auto": timed, "kv": []})] == ["auto"]


def test_modes_take_turns_and_each_has_the_whole_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    with small_server() as server, InferScaleClient(base_url=server.url) as client:
        chats = Chats(client, "u", Load(100.0, 0.3, 0.0, 5, 2, 0), (f"Q{at}?" for at in count()), [])
        answered = in_turns(chats, [ServerMemory("u", mode) for mode in ("kv", "text")], lambda words: None)
    counts = {mode: len(timed) for mode, timed in answered.items()}
    assert counts["kv"] == counts["text"] > 0
    counted = [chat["mode"] for chat in server.chats][2 * WARM_UP_CHATS :]
    assert [mode for mode, _ in groupby(counted)] == ["kv", "text"] * ROUNDS


def bench(server: SmallServer, data: Path, *argv: str) -> int:
    """`inferscale bench load`; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "load", "--data", str(data), "--base-url", server.url, "--facts", "5", *argv])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    return write(tmp_path, changed=long_session(45))


def test_load_compares_the_modes_and_idle_with_encoding(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "IDLE_CHATS_AT_LEAST", 30)
    figures, plot = tmp_path / "figures", tmp_path / "plot.svg"
    with small_server() as server:
        fast = ("--rate", "100", "--seconds", "0.6", "--adds", "0.3", "--encoded-facts", "60")
        assert bench(server, data, *fast, "--json", str(figures), "--plot", str(plot)) == 0
    read = json.loads(figures.read_text())
    chats = {one["load"]: one["chats"] for one in read["cells"]}
    assert list(chats) == ["auto", "kv", "text", "off", "idle", "encoding"]
    assert chats["idle"] == max(chats["encoding"], 30) and chats["kv"] == chats["text"] == chats["off"]
    assert len(read["ratios"]) == 3 and read["encoding"]["results"]["stored"] >= 60
    assert {chat["mode"] for chat in server.chats} == {"auto", "kv", "text", "off"}
    assert "<svg" in plot.read_text() and "Chats in an open loop" in capsys.readouterr().out


def test_a_load_that_is_too_short_for_a_chat_is_a_complaint(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server() as server:
        assert bench(server, data, "--rate", "0.01", "--seconds", "0.1", "--encoded-facts", "0") == 1
    assert "no chat came under the load 'auto'" in capsys.readouterr().err


def test_mem0_has_the_same_load(data: Path, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    with small_server() as server:
        fast = ("--rate", "100", "--seconds", "0.3", "--adds", "0", "--encoded-facts", "0", "--limit", "5")
        assert bench(server, data, *fast, "--mem0", "--json", str(figures)) == 0
    chats = {one["load"]: one["chats"] for one in json.loads(figures.read_text())["cells"]}
    assert chats["mem0"] == chats["off"] > 0
    assert len(server.systems) == chats["mem0"] + WARM_UP_CHATS


def test_more_facts_than_there_are_start_no_load(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server() as server:
        assert bench(server, data, "--limit", "4") == 2
    assert "value 5 is never reached: only 4 facts are loaded" in capsys.readouterr().err and server.facts == []
