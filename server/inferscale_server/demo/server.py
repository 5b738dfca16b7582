"""A server of our own for the length of the demo: its own port, its own data folder, stopped at the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_server.config import environ_without_ours
from inferscale_server.demo.start_log import StartLog
from inferscale_server.engine.lifeline import killed_by
from inferscale_server.errors import StartupError

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

QUIET_TIMEOUT_S = 600.0
"""A start is given up when it has written nothing for so long: large models compile for minutes, and say so."""
STOP_TIMEOUT_S = 30.0
POLL_S = 0.5
READY_TRY_S = 5.0
STARTING = "starting the server"

Report = Callable[[str], None]


@contextmanager
def running_server(
    data: Path,
    log: Path,
    vllm_args: Sequence[str],
    report: Report,
    model: str | None = None,
    options: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Iterator[InferScaleClient]:
    """A client for a server as `server_at` runs it."""
    from inferscale_sdk import InferScaleClient

    running = server_at(data, log, vllm_args, report, model, options, settings)
    with running as url, InferScaleClient(base_url=url) as client:
        yield client


@contextmanager
def server_at(
    data: Path,
    log: Path,
    vllm_args: Sequence[str],
    report: Report,
    model: str | None = None,
    options: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """The address of a server that is ready; it is stopped on leaving, however the body ends.

    `options` are more options of `inferscale serve`, `settings` are `INFERSCALE_*` variables for it: it inherits none
    of ours, which may name the facts of a server that people use. Its own words go to `log`; vLLM's lie beside it
    afterwards as `engine.log`. Raises StartupError with the last line of the server's log when it does not come up.
    """
    from inferscale_sdk import InferScaleClient

    port, written = free_port(), StartLog(log, data)
    with log.open("wb") as output:
        # A session of its own: Ctrl-C reaches us alone, and we stop it in order.
        process = subprocess.Popen(
            serve_command(port, data, vllm_args, model, options),
            env=environ_without_ours() | dict(settings or {}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        with InferScaleClient(base_url=url) as client:
            wait_ready(client, process, written, report)
        yield url
    finally:
        report("stopping the server")
        stop(process)
        written.keep()


def serve_command(
    port: int, data: Path, vllm_args: Sequence[str], model: str | None = None, options: Sequence[str] = ()
) -> list[str]:
    """The command line that serves `model`, or the embedded one, with the facts in `data`."""
    ours = ["serve", *([model] if model else []), "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(data)]
    vllm = ["--", *vllm_args] if vllm_args else []
    return [sys.executable, "-m", "inferscale_server.cli", *ours, *options, *vllm]


def free_port() -> int:
    """A TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(client: InferScaleClient, process: subprocess.Popen[bytes], log: StartLog, report: Report) -> None:
    """Return when the server takes work, however long that takes while it lives and writes; tells each of its stages.

    Raises StartupError when it ends, or writes nothing for QUIET_TIMEOUT_S.
    """
    asked, doing = client.with_options(timeout=READY_TRY_S), STARTING
    began = grown = time.monotonic()
    while (now := time.monotonic()) - grown < QUIET_TIMEOUT_S:
        if process.poll() is not None:
            raise StartupError(f"the server {how_ended(process.returncode)}; {log.last_words()}")
        if log.grew():
            grown = now
        for stage in log.new_stages():
            report(doing := f"{STARTING}, {stage}")
        report(f"{doing}: {now - began:.0f} s")
        if asked.ready():
            return
        time.sleep(POLL_S)
    quiet = f"and has written nothing for {QUIET_TIMEOUT_S:.0f} s"
    raise StartupError(f"the server was not ready after {now - began:.0f} s {quiet}; {log.last_words()}")


def how_ended(code: int) -> str:
    """An exit code in words."""
    killed = killed_by((code,))
    return f"ended with code {code}" if killed is None else f"was {killed}"


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM leave the block like an exception, exit code 143, so that what was started is stopped."""
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end; after STOP_TIMEOUT_S end it and what it started."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
