"""The server that a benchmark asks: one that runs already, or one of its own with an empty data folder."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_server.demo.server import Report, free_port, serve_command, sigterm_unwinds, stop, wait_ready
from inferscale_server.errors import Unavailable

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Which server to measure. `base_url` names one that runs; the rest is how to start one."""

    base_url: str | None = None
    model: str | None = None
    dtype: str = "auto"
    vllm_args: tuple[str, ...] = ()


@contextmanager
def chosen_server(choice: ServerChoice, tell: Report) -> Iterator[InferScaleClient]:
    """A client of a server that injects KV; a server of our own is stopped, and its facts are gone, on leaving.

    Raises StartupError when it does not come up, Unavailable when it cannot inject.
    """
    from inferscale_sdk import InferScaleClient

    if choice.base_url is not None:
        with InferScaleClient(base_url=choice.base_url) as client:
            check_injects(client)
            yield client
        return
    with sigterm_unwinds(), started_server(choice, tell) as client:
        check_injects(client)
        yield client


@contextmanager
def started_server(choice: ServerChoice, tell: Report) -> Iterator[InferScaleClient]:
    """A client of a server in a process of its own, stopped on leaving. Raises StartupError."""
    from inferscale_sdk import InferScaleClient

    port = free_port()
    with tempfile.TemporaryDirectory(prefix="inferscale-bench-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            # A session of its own: Ctrl-C reaches us alone, and we stop it in order.
            process = subprocess.Popen(
                own_command(choice, port, Path(folder) / "facts"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            with InferScaleClient(base_url=f"http://127.0.0.1:{port}") as client:
                wait_ready(client, process, log, tell)
                yield client
        finally:
            stop(process)


def own_command(choice: ServerChoice, port: int, data: Path) -> Sequence[str]:
    """The command line of our own server."""
    command = serve_command(port, data, ("--dtype", choice.dtype, *choice.vllm_args))
    if choice.model is None:
        return command
    after_serve = command.index("serve") + 1
    return [*command[:after_serve], choice.model, *command[after_serve:]]


def check_injects(client: InferScaleClient) -> None:
    """Raises Unavailable with the server's reason when it serves memory as text only."""
    kv = client.status().raw["kv"]
    assert isinstance(kv, dict), f"status.kv is {kv!r}"
    if not kv["enabled"]:
        raise Unavailable(f"this server does not inject KV: {'; '.join(kv['refusals'])}")
