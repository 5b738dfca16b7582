"""`inferscale bench` from the command line to its exit code, against a small server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inferscale_sdk import _retry
from inferscale_server.bench import encoding, injection_clock
from inferscale_server.bench.probe import FACT_COUNTS, MODES
from inferscale_server.cli import main
from inferscale_server.demo.server import free_port
from inferscale_server.limits import MAX_FACT_CHARS
from tests.bench.invented import long_session, write
from tests.bench.small_server import SECONDS_A_TOKEN, SmallServer, small_server

Run = Callable[..., int]
LOAVES = 45
FACTS = 5 + LOAVES


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run one benchmark on the invented conversation; returns its exit code."""
    monkeypatch.setattr(encoding, "POLL_S", 0.0)
    monkeypatch.setattr(injection_clock, "CAUGHT_UP_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "conversations").mkdir()
    data = str(write(tmp_path / "conversations", changed=long_session(LOAVES)))

    def run(server: SmallServer, *argv: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["bench", *argv, "--data", data, "--base-url", server.url])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def test_ttft_times_every_cell_and_leaves_figures_and_plot(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, plot = tmp_path / "ttft.json", tmp_path / "ttft.svg"
    with small_server() as server:
        options = ("--questions", "2", "--breakdown", "--json", str(figures), "--plot", str(plot))
        assert run(server, "ttft", *options) == 0
    read = json.loads(figures.read_text())
    assert [(cell["k"], cell["mode"], cell["samples"]) for cell in read["cells"]] == [
        (k, mode, 2) for k in FACT_COUNTS for mode in MODES
    ]
    assert read["complaints"] == [] and len(read["ratios"]) == 3
    assert read["machine"]["model"] == "tiny" and read["encoding"]["facts"] == FACTS
    assert "<svg" in plot.read_text()
    told = {one["name"]: one["ms"] for one in read["overheads"]}
    assert told == {
        "embed + search + plan + stage at k = 50": pytest.approx(0.03),
        "search + plan + stage at k = 50": pytest.approx(0.02),
        "injection of 1900 tokens": pytest.approx(1.9e6 * SECONDS_A_TOKEN),
    }
    out = capsys.readouterr().out
    assert all(
        title in out for title in ("Encoding", "Time to first token", "Ratios", "Where the time goes", "Overhead")
    )


def test_every_file_of_figures_says_which_machine_and_which_command(run: Run, tmp_path: Path) -> None:
    with small_server() as server:
        assert run(server, "encode", "--limit", "5", "--json", str(tmp_path / "f.json")) == 0
    machine = json.loads((tmp_path / "f.json").read_text())["machine"]
    assert machine["cpu"] and machine["cpu_cores"] >= 1 and machine["ram_gib"] > 0
    assert {"python", "inferscale-sdk"} <= machine["versions"].keys()
    assert datetime.fromisoformat(machine["date"]).tzinfo is not None and machine["command"]


def test_ttft_loads_no_more_facts_than_it_was_told(run: Run) -> None:
    with small_server() as server:
        assert run(server, "ttft", "--questions", "1", "--limit", "5") == 0
    assert [fact["text"] for fact in server.facts[:2]] == ["Ilse built a canoe.", "Ilse paddles at dawn."]
    assert len(server.facts) == 5
    said_at = datetime(2023, 5, 8, 13, 56, tzinfo=UTC).timestamp()
    assert (server.facts[0]["speaker"], server.facts[0]["timestamp"]) == ("Ilse", said_at)


def test_ttft_does_not_count_the_warm_up(run: Run, tmp_path: Path) -> None:
    with small_server() as server:
        assert run(server, "ttft", "--questions", "1", "--json", str(tmp_path / "f.json")) == 0
    samples = json.loads((tmp_path / "f.json").read_text())["samples"]
    assert len(samples) == len(FACT_COUNTS) * len(MODES) == len(server.chats) // 2


def test_memory_that_is_not_injected_fails_the_ttft_benchmark(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(never_injects=True) as server:
        assert run(server, "ttft", "--questions", "1") == 1
    error = capsys.readouterr().err
    assert "only 0.0% of the memory tokens were injected at k = 50" in error
    assert "kv with k = 5 as text (nothing_encoded)" in error


def test_encode_reports_facts_and_tokens_a_second(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, plot = tmp_path / "f.json", tmp_path / "p.png"
    with small_server() as server:
        assert run(server, "encode", "--json", str(figures), "--plot", str(plot)) == 0
    read = json.loads(figures.read_text())
    assert (read["facts"], read["tokens"], read["results"]) == (FACTS, 10 * FACTS, {"stored": FACTS})
    assert read["facts_per_s"] == pytest.approx(FACTS / read["encode_s"])
    assert read["computed"] == {"own": 40 * FACTS} and read["cost"] == 4.0
    assert [mark["pending"] for mark in read["marks"]] == [*range(FACTS - 1, -1, -1)]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "facts/s" in capsys.readouterr().out


def test_facts_can_be_added_one_by_one(run: Run, tmp_path: Path) -> None:
    figures = tmp_path / "f.json"
    with small_server() as server:
        assert run(server, "encode", "--one-by-one", "--json", str(figures)) == 0
    assert len(server.facts) == FACTS == json.loads(figures.read_text())["results"]["stored"]


def test_chunks_that_failed_fail_the_encode_benchmark(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(failed=2) as server:
        assert run(server, "encode") == 1
    assert "2 chunks were not encoded" in capsys.readouterr().err


def test_equivalence_holds_for_equal_answers(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, plot = tmp_path / "f.json", tmp_path / "p.png"
    with small_server() as server:
        assert run(server, "equivalence", "--json", str(figures), "--plot", str(plot)) == 0
    agreements = json.loads(figures.read_text())["agreements"]
    assert [one["check"] for one in agreements] == ["kv against text", "kv, second time"] * 4
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "no" not in capsys.readouterr().out.split()


def test_equivalence_asks_about_one_text_that_holds_the_memory_of_a_user_without_facts(run: Run) -> None:
    with small_server() as server:
        assert run(server, "equivalence", "--questions", "2") == 0
    assert server.facts == []
    contexts = {tuple(chat["context"]) for chat in server.chats}
    ((memory,),) = contexts
    assert memory.startswith("- [8 May 2023] Ilse: Ilse built a canoe.") and "4 January 2024" in memory
    assert len(memory) <= MAX_FACT_CHARS
    assert [chat["mode"] for chat in server.chats] == ["kv", "kv", *["text", "kv", "kv"] * 2]


def test_probabilities_that_differ_fail_the_equivalence_benchmark(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(kv_shift=0.01) as server:
        assert run(server, "equivalence", "--questions", "1") == 1
    assert "2 of 2 tokens identical, logprobs differ by 1.0e-02: What did Ilse build?" in capsys.readouterr().err


def test_a_memory_that_is_not_encoded_as_one_chunk_is_one_line(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server(never_injects=True) as server:
        assert run(server, "equivalence", "--questions", "1") == 2
    error = capsys.readouterr().err
    (told,) = [line for line in error.splitlines() if line.startswith("inferscale:")]
    assert "not encoded as one chunk (nothing_encoded" in told


@pytest.mark.parametrize("command", ["ttft", "encode", "equivalence"])
def test_a_server_that_cannot_inject_is_not_measured(
    run: Run, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    with small_server(refusals=["ALiBi positions"]) as server:
        assert run(server, command, *(["--questions", "1"] if command == "ttft" else [])) == 2
    assert server.chats == server.facts == []
    assert capsys.readouterr().err == "inferscale: this server does not inject KV: ALiBi positions\n"


def test_a_folder_without_conversations_is_one_line_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "ttft", "--data", str(tmp_path)])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


MEASURING = ("accuracy", "encode", "equivalence", "isolation", "load", "sessions", "throughput", "tiers", "ttft")


@pytest.mark.parametrize("command", [(name,) for name in MEASURING] + [("footprint", "--user", "alice")])
def test_an_address_that_is_none_is_an_error_of_the_option(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main(["bench", *command, "--base-url", "foo"])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and "base_url='foo': must look like http://host:port" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", [(name,) for name in MEASURING] + [("footprint", "--user", "alice")])
def test_a_server_that_is_off_is_one_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_retry, "FIRST_DELAY_S", 0.0)
    with pytest.raises(SystemExit) as ended:
        main(["bench", *command, "--base-url", f"http://127.0.0.1:{free_port()}"])
    error = capsys.readouterr().err
    told = [line for line in error.splitlines() if line.startswith("inferscale: connection failed")]
    assert ended.value.code == 2 and len(told) == 1 and "is `inferscale serve` running" in told[0]
    assert "Traceback" not in error
