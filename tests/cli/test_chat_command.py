"""`inferscale chat` fed by a script: what goes wrong is on stderr and in the exit code."""

from __future__ import annotations

import io
import sys

import pytest

from inferscale_server.cli import main
from tests.cli.small_server import small_server


@pytest.mark.parametrize(
    ("argv", "stdin", "words"),
    [
        (("--user", "cli", "--url", "http://127.0.0.1:9"), b"hello\n", "connection failed"),
        (("--user", "cli", "--url", "http://127.0.0.1:9"), b"caf\xff?\n", "connection failed"),
        (
            ("--user", "cli", "--url", "http://127.0.0.1:9"),
            b"",
            "no answer from http://127.0.0.1:9: is `inferscale serve`",
        ),
        (("--user", ""), b"hello\n", "must not be empty"),
    ],
)
def test_a_question_that_failed_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    stdin: bytes,
    words: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8", errors="surrogateescape"))
    with pytest.raises(SystemExit) as ended:
        main(["chat", *argv])
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert words in " ".join(told.err.replace("│", " ").split()) and "Traceback" not in told.err


def test_no_question_for_a_server_that_is_up_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with small_server() as url, pytest.raises(SystemExit) as ended:
        main(["chat", "--user", "cli", "--url", url])
    assert (ended.value.code, capsys.readouterr().err) == (0, "")
