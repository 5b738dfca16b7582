"""The server that is measured."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from inferscale_server.bench import server_process
from inferscale_server.bench.server_process import ServerChoice, chosen_server, vllm_args_of
from inferscale_server.demo import server
from inferscale_server.errors import StartupError
from tests.bench.small_server import small_server


def silent(_: str) -> None:
    """Takes progress and shows none."""


def test_model_dtype_and_flags_reach_our_own_server() -> None:
    choice = ServerChoice(model="org/m", dtype="float32", vllm_args=("--enforce-eager",))
    argv = server.serve_command(8123, Path("/d"), vllm_args_of(choice), choice.model)
    assert argv[1:5] == ["-m", "inferscale_server.cli", "serve", "org/m"]
    assert argv[-4:] == ["--", "--dtype", "float32", "--enforce-eager"]
    assert argv[argv.index("--data-dir") + 1] == "/d"


def test_without_a_model_the_embedded_one_is_served() -> None:
    argv = server.serve_command(8123, Path("/d"), ())
    assert argv[argv.index("serve") + 1].startswith("--")


def test_a_server_that_runs_is_used_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(server_process, "running_server", started)
    with small_server() as small:
        for _ in range(2):
            with chosen_server(ServerChoice(base_url=small.url), silent) as client:
                assert client.status().model == "tiny"


def test_a_server_that_does_not_start_is_one_line_with_its_last_words_and_a_log_that_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    _serve_with(monkeypatch, [sys.executable, "-c", "print('no such model\\n'); raise SystemExit(3)"])
    with (
        pytest.raises(StartupError, match=r"^the server ended with code 3; .*log ends with: no such model$") as caught,
        chosen_server(ServerChoice(), silent),
    ):
        pass
    (log,) = tmp_path.glob("*/server.log")
    assert str(log) in str(caught.value) and log.read_text() == "no such model\n\n"


def test_our_own_server_is_stopped_even_when_it_cannot_inject(monkeypatch: pytest.MonkeyPatch) -> None:
    _serve_with(monkeypatch, [sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(server, "wait_ready", lambda *_: None)
    stopped: list[subprocess.Popen[bytes]] = []
    real_stop = server.stop

    def watched(process: subprocess.Popen[bytes]) -> None:
        stopped.append(process)
        real_stop(process)

    def cannot(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server, "stop", watched)
    monkeypatch.setattr(server_process, "check_injects", cannot)
    with pytest.raises(ZeroDivisionError), chosen_server(ServerChoice(), silent):
        pass
    assert stopped[0].returncode == -signal.SIGTERM


def _serve_with(monkeypatch: pytest.MonkeyPatch, argv: Sequence[str]) -> None:
    monkeypatch.setattr(server, "serve_command", lambda *_: argv)
