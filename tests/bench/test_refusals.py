"""What a benchmark cannot do is said before anything is measured."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import pytest

from inferscale_server.bench.throughput import endless
from inferscale_server.cli import main
from tests.bench.invented import long_session, write
from tests.bench.small_server import small_server

FACTS = 60


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *argv: str, **changed: object) -> str:
    """What is said; asserts that the server was asked nothing."""
    data = write(folder, changed=long_session(FACTS) | changed)
    with small_server() as server, pytest.raises(SystemExit) as ended:
        main(["bench", *argv, "--data", str(data), "--base-url", server.url])
    assert ended.value.code == 2 and server.facts == server.chats == []
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("command", ["ttft", "throughput", "load", "sessions", "tiers", "encode", "equivalence"])
def test_files_that_cannot_be_written_are_refused_at_once(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    there = Path(__file__) / "f.png"
    assert "can be made" in refused(tmp_path, capsys, command, "--json", str(there))
    assert "can be made" in refused(tmp_path, capsys, command, "--plot", str(there))
    assert "cannot be written" in refused(tmp_path, capsys, command, "--json", str(tmp_path))
    told = refused(tmp_path, capsys, command, "--plot", str(tmp_path / "f.txt"))
    assert "--plot" in told and "does not end in .png, .svg, .pdf" in told


def test_bench_index_refuses_such_files_too(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--json", "--plot"):
        with pytest.raises(SystemExit) as ended:
            main(["bench", "index", "--limit", "100", option, str(Path(__file__) / "f.png")])
        assert ended.value.code == 2 and option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("ttft", "--limit", "4"), "at least 5 facts are needed, there are 4"),
        (("ttft", "--questions", "500"), "different questions are needed"),
        (("sessions", "--conversations", "50"), "different questions are needed"),
        (("tiers", "--users", "500"), "different questions are needed"),
        (("load", "--facts", "100"), "value 100 is never reached"),
        (("load", "--seconds", "inf"), "--seconds"),
        (("load", "--rate", "nan"), "--rate"),
    ],
)
def test_what_the_conversation_or_the_clock_cannot_give_is_refused(
    argv: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(tmp_path, capsys, *argv)


@pytest.mark.parametrize("command", ["ttft", "throughput", "load", "sessions", "tiers", "equivalence"])
def test_a_conversation_without_questions_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "different questions are needed, there are only 0" in refused(tmp_path, capsys, command, qa=[])


@pytest.mark.parametrize("command", ["ttft", "throughput", "load"])
@pytest.mark.parametrize("package", ["mem0", "qdrant_client"])
def test_a_rival_that_is_not_installed_is_refused_at_once(
    command: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setitem(sys.modules, package, None)
    assert f"{package} is not installed: pip install mem0ai" in refused(tmp_path, capsys, command, "--mem0")


def test_a_question_that_the_source_has_twice_is_not_asked_twice_in_the_same_words() -> None:
    asked = list(islice(endless(["a", "b", "a"], 0), 6))
    assert asked == ["a", "b", "a (1)", "b (1)", "a (2)", "b (2)"]
