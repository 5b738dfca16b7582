"""A start is waited for as long as it does something, and what it wrote can be read when it fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferscale_server.demo import server
from inferscale_server.demo.start_log import StartLog, log_folder
from inferscale_server.errors import StartupError

STEP_S = 400.0
"""Two of them are longer than a server may write nothing."""


class Clock:
    """In the place of the module `time`: each sleep takes STEP_S and no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += STEP_S


class SlowServer:
    """In the place of a client: each time that it is asked it writes one of `lines` into `file`, then it is ready."""

    def __init__(self, file: Path, lines: list[str]) -> None:
        self.file, self.lines = file, lines
        file.write_text("")

    def with_options(self, timeout: float) -> SlowServer:
        return self

    def ready(self) -> bool:
        if not self.lines:
            return True
        with self.file.open("a") as file:
            file.write(self.lines.pop(0))
        return False


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until the end of the test, beside a clock of its own."""
    assert 2 * STEP_S > server.QUIET_TIMEOUT_S > STEP_S
    monkeypatch.setattr(server, "time", Clock())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def wait(slow: SlowServer, process: subprocess.Popen[bytes], log: StartLog) -> list[str]:
    """What is told until it is ready."""
    told: list[str] = []
    server.wait_ready(slow, process, log, told.append)  # type: ignore[arg-type]
    return told


def test_a_server_that_writes_is_waited_for_and_its_stages_are_told(
    tmp_path: Path, alive: subprocess.Popen[bytes]
) -> None:
    log = tmp_path / "server.log"
    lines = ["  0.1 s  preparing\n", "a warning\n", "  9.0 s  loading m (a minute)\n", " 12.0 s  ga", "te\n"]
    told = wait(SlowServer(log, lines), alive, StartLog(log))
    assert told[0] == "starting the server: 0 s" and told[-1].startswith("starting the server, gate: 2000 s")
    stages = [line.removeprefix("starting the server, ") for line in told if ":" not in line]
    assert stages == ["preparing", "loading m (a minute)", "gate"]


def test_what_vllm_writes_counts_as_well(tmp_path: Path, alive: subprocess.Popen[bytes]) -> None:
    (tmp_path / "data" / "logs").mkdir(parents=True)
    (tmp_path / "server.log").write_text("")
    slow = SlowServer(tmp_path / "data" / "logs" / "engine.log", ["compiled a layer\n"] * 5)
    assert len(wait(slow, alive, StartLog(tmp_path / "server.log", tmp_path / "data"))) == 6


def test_a_server_that_writes_nothing_for_long_is_given_up(tmp_path: Path, alive: subprocess.Popen[bytes]) -> None:
    log = tmp_path / "server.log"
    slow = SlowServer(log, ["  0.1 s  preparing\n", *[""] * 5])
    with pytest.raises(StartupError, match=r"written nothing for 600 s; .*server\.log ends with: 0\.1 s  preparing$"):
        wait(slow, alive, StartLog(log))
    assert slow.lines != [] and alive.poll() is None


def test_a_server_that_only_says_that_it_still_loads_is_given_up(
    tmp_path: Path, alive: subprocess.Popen[bytes]
) -> None:
    log, told = tmp_path / "server.log", list[str]()
    slow = SlowServer(log, ["  0.1 s  loading\n", *(f"{30 * n}.0 s  still loading\n" for n in range(1, 6))])
    with pytest.raises(StartupError, match="written nothing for 600 s"):
        server.wait_ready(slow, alive, StartLog(log), told.append)  # type: ignore[arg-type]
    assert slow.lines != [] and [line for line in told if ":" not in line] == ["starting the server, loading"]


def test_a_killed_server_is_told_by_its_signal(tmp_path: Path, alive: subprocess.Popen[bytes]) -> None:
    alive.kill()
    alive.wait()
    log = tmp_path / "server.log"
    with pytest.raises(StartupError, match=r"^the server was killed by signal 9: out of memory\?; .* with: nothing$"):
        wait(SlowServer(log, [""]), alive, StartLog(log))


def test_last_words_name_the_engines_log_that_is_kept(tmp_path: Path) -> None:
    written = tmp_path / "data" / "logs" / "engine.log"
    written.parent.mkdir(parents=True)
    written.write_text("the cause")
    own = tmp_path / "out" / "server.log"
    own.parent.mkdir()
    own.write_text(f"inferscale: vLLM's engine did not start: no reason given (more in {written})\n")
    log = StartLog(own, tmp_path / "data")
    log.keep()
    kept = own.parent / "engine.log"
    assert log.last_words().endswith(f"(more in {kept})") and kept.read_text() == "the cause"


def test_logs_outlive_a_server_that_does_not_come_up_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), log_folder():
            raise error
    with log_folder():
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StartupError), log_folder() as folder:
        raise StartupError("no such model")
    assert list(tmp_path.iterdir()) == [folder]
