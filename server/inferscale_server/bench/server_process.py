"""The server that a benchmark asks: one that runs already, or one of its own with an empty data folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_server.demo.server import Report, running_server, sigterm_unwinds
from inferscale_server.demo.start_log import log_folder
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
    options: tuple[str, ...] = ()
    """More options of `inferscale serve`."""


@contextmanager
def chosen_server(choice: ServerChoice, tell: Report) -> Iterator[InferScaleClient]:
    """A client of a server that injects KV; a server of our own is stopped, and its facts are gone, on leaving.

    Raises StartupError when it does not come up, and leaves its logs then, Unavailable when it cannot inject.
    """
    from inferscale_sdk import InferScaleClient

    if choice.base_url is not None:
        with InferScaleClient(base_url=choice.base_url) as client:
            check_injects(client)
            yield client
        return
    with (
        sigterm_unwinds(),
        log_folder() as logs,
        tempfile.TemporaryDirectory(prefix="inferscale-bench-") as data,
        running_server(
            Path(data), logs / "server.log", vllm_args_of(choice), tell, choice.model, choice.options
        ) as client,
    ):
        check_injects(client)
        yield client


def vllm_args_of(choice: ServerChoice) -> tuple[str, ...]:
    """What our own server passes on to vLLM."""
    return ("--dtype", choice.dtype, *choice.vllm_args)


def check_injects(client: InferScaleClient) -> None:
    """Raises Unavailable with the server's reason when it serves memory as text only."""
    kv = client.status().raw["kv"]
    assert isinstance(kv, dict), f"status.kv is {kv!r}"
    if not kv["enabled"]:
        raise Unavailable(f"this server does not inject KV: {'; '.join(kv['refusals'])}")
