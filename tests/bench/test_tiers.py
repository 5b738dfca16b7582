"""Memory that is not on the device: who is asked, what is compared, what voids a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferscale_server.bench import encoding, server_process
from inferscale_server.bench.tier_cell import cold_cost_ms, tier_cells, tier_complaints, tier_ratios
from inferscale_server.cli import main
from inferscale_server.errors import StartupError
from tests.bench.invented import long_session, write
from tests.bench.small_server import TOKENS_A_FACT, SmallServer, small_server
from tests.bench.test_cell import sample

USERS, FACTS = 3, 5


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")


def bench(server: SmallServer, folder: Path, *argv: str) -> int:
    """`inferscale bench tiers`; returns its exit code."""
    data = str(write(folder, changed=long_session(45)))
    options = ("--data", data, "--base-url", server.url, "--users", str(USERS), "--facts", str(FACTS))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "tiers", *options, *argv])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_every_user_is_asked_as_text_without_memory_cold_and_warm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = tmp_path / "figures", tmp_path / "plot.svg"
    with small_server() as server:
        assert bench(server, tmp_path, "--json", str(figures), "--plot", str(plot)) == 0
    assert [chat["mode"] for chat in server.chats] == ["kv"] * (1 + USERS) + ["text", "off", "kv", "kv"] * (1 + USERS)
    assert len(server.facts) == (1 + USERS) * FACTS
    read = json.loads(figures.read_text())
    tokens = {cell["answer"]: cell["tokens"] for cell in read["cells"]}
    assert list(tokens) == ["off", "text", "cold", "warm"]
    memory = FACTS * TOKENS_A_FACT
    assert (tokens["cold"]["disk"], tokens["warm"]["device"], tokens["text"]["text"]) == (memory, memory, memory)
    assert [ratio["name"] for ratio in read["ratios"]] == ["cold on disk / text", "cold on disk / text, p99"]
    assert read["cold_cost_ms"] is not None and "<svg" in plot.read_text()
    out = capsys.readouterr().out
    assert "Time to first token with memory on disk" in out and "longer than a warm one" in out


def test_without_a_memory_that_is_cold_there_is_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_server() as server:
        server.footprint = lambda user: {"facts": 5, "tokens": 50, "bytes": {"device": 1, "disk": 1}}  # type: ignore[method-assign]
        assert bench(server, tmp_path) == 1
    told = capsys.readouterr().err
    assert f"the memory of only 0 of {USERS} users lay on disk alone" in told
    assert len(server.chats) == 1 + USERS + 4


def test_a_server_without_the_tier_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(has_disk=False) as server:
        assert bench(server, tmp_path) == 2
    assert "this server has no tier 'disk': start it with --kv-disk-gib" in capsys.readouterr().err
    assert server.facts == []


def test_our_own_server_has_a_small_slab_and_one_cold_tier_for_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    def start(*given: object) -> None:
        started.append(given[-1])
        raise StartupError("enough")

    monkeypatch.setattr(server_process, "running_server", start)
    with pytest.raises(SystemExit) as ended:
        data = str(write(tmp_path, changed=long_session(45)))
        main(["bench", "tiers", "--tier", "host", "--users", "9", "--data", data])
    assert ended.value.code == 2
    assert started == [("--kv-device-gib", "0.1", "--kv-host-gib", "1", "--kv-disk-gib", "0")]


def test_cold_is_judged_by_text_and_costs_what_warm_does_not() -> None:
    samples = {
        "text": [sample(50, "text", ttft_ms=ms) for ms in (100.0, 110.0, 120.0)],
        "cold": [sample(50, "kv", ttft_ms=ms) for ms in (80.0, 121.0, 150.0)],
        "warm": [sample(50, "kv", ttft_ms=40.0)],
    }
    cells = tier_cells(samples)
    middle, last = tier_ratios(cells, "host")
    assert (middle.value, middle.met, last.value, last.met) == (1.1, True, 1.25, False)
    assert cold_cost_ms(cells) == 81.0
    assert tier_ratios(cells[:1], "host") == [] and cold_cost_ms(cells[:1]) is None
    assert list(tier_complaints(samples, "host", 6)) == []


def test_a_warm_answer_as_text_voids_the_run_and_a_cold_one_does_not() -> None:
    cold = [sample(50, "kv", served="text")] * 3
    assert list(tier_complaints({"cold": cold}, "disk", 6)) == []
    assert list(tier_complaints({"cold": cold, "warm": cold}, "disk", 6)) == [
        "3 answers (warm) were served as text (because)"
    ]
