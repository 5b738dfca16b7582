"""What goes to vLLM's log and what stays on the terminal, from a process of its own."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inferscale_server.engine import log_file
from inferscale_server.engine.log_file import diverted, first_fault, keep_heard
from inferscale_server.errors import DataFolderError

TALKER = """
import atexit, os, subprocess, sys
from pathlib import Path
from inferscale_server.engine.log_file import diverted
atexit.register(lambda: os.write(2, b"a leak at exit\\n"))
with diverted(Path(sys.argv[1])) as terminal:
    print("ours", file=terminal)
    print("python's")
    os.write(2, b"a library's\\n")
    subprocess.run(["echo", "a child's"])
    if len(sys.argv) > 2:
        raise SystemExit("the error")
"""


def talk(log: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", TALKER, str(log), *more], capture_output=True, text=True)


def log_of_start(log: Path, words: str) -> None:
    os.write(descriptor := log_file._open(log), words.encode())
    os.close(descriptor)


def test_only_our_words_reach_the_terminal_and_the_rest_is_in_the_log(tmp_path: Path) -> None:
    done = talk(tmp_path / "logs" / "engine.log")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "ours\n")
    written = (tmp_path / "logs" / "engine.log").read_text().splitlines()
    assert sorted(written) == ["a child's", "a leak at exit", "a library's", "python's"]


def test_an_error_that_leaves_is_told_on_the_terminal_and_leaks_still_are_not(tmp_path: Path) -> None:
    done = talk(tmp_path / "engine.log", "fail")
    assert (done.returncode, done.stderr) == (1, "ours\nthe error\n")
    assert "a leak at exit" in (tmp_path / "engine.log").read_text()


def test_the_log_of_the_start_before_is_kept_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("before\n")
    talk(log)
    assert (tmp_path / "engine.log.1").read_text() == "before\n" and "before" not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_the_logs_of_five_starts_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "engine.log"
    for number in range(7):
        log_of_start(log, f"start {number}")
    kept = {path.name: path.read_text() for path in log.parent.iterdir()}
    assert kept == {
        "engine.log": "start 6",
        "engine.log.1": "start 5",
        "engine.log.2": "start 4",
        "engine.log.3": "start 3",
        "engine.log.4": "start 2",
    }


def test_a_log_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(DataFolderError, match=r"engine\.log"), diverted(tmp_path / "logs" / "engine.log"):
        pass


def test_the_first_fault_is_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(APIServer pid=1) WARNING 11-29 [a.py:1] This can cause `OSError: [Errno 24]`\n"
        "(EngineCore pid=2) ERROR 11-29 17:55:40 [core.py:9] ValueError: too little memory\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\nOSError: later\n"
    )
    assert first_fault(log) == "ValueError: too little memory"
    log.write_text("RuntimeError: Engine core initialization failed. See root cause above.\n")
    assert first_fault(log) is None and first_fault(tmp_path / "none") is None


def test_our_words_are_written_whatever_a_library_did_to_the_loggers(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("inferscale_server.some_module")
    root, ours = logging.getLogger(), logging.getLogger("inferscale_server")
    before = root.level, ours.level
    logger.disabled = True
    logging.disable(logging.CRITICAL)
    root.setLevel(logging.ERROR)
    try:
        keep_heard()
        logger.warning("heard")
    finally:
        root.setLevel(before[0])
        ours.setLevel(before[1])
    assert [record.message for record in caplog.records] == ["heard"]
