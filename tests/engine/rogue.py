"""A connector whose halves fail on demand: the file that ROGUE_CONNECTOR_FILE names holds the method to break.

Used as the connector of the test engine, so that one engine serves all tests; with an empty file it is the real one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from inferscale_server.engine.connector import InferScaleConnector
from inferscale_server.engine.scheduler_half import SchedulerHalf
from inferscale_server.engine.worker_half import WorkerHalf

FILE = "ROGUE_CONNECTOR_FILE"
SCHEDULER = ("arrived", "claim", "allocated", "step", "finished")
WORKER = ("begin", "load", "end")
ANSWERING = ("claim", "step", "finished", "take_failed_blocks")
"""Those whose answer goes to vLLM; with a question mark behind its name, one gives something senseless."""


class Rogue(RuntimeError):
    """The planted fault."""


def _maybe_fail(method: str) -> bool:
    """Raise if this method is to fail; is it to answer something senseless?"""
    asked = Path(os.environ[FILE]).read_text()
    if asked == method:
        raise Rogue(method)
    return asked == f"{method}?"


def _rogue(half: type, names: tuple[str, ...]) -> type:
    def broken(name: str) -> Any:
        real = getattr(half, name)

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _maybe_fail(name):
                return object()
            return real(self, *args, **kwargs)

        return method

    return type(f"Rogue{half.__name__}", (half,), {name: broken(name) for name in names})


class RogueConnector(InferScaleConnector):
    """InferScale's connector with breakable halves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.scheduler is not None:
            self.scheduler.__class__ = _rogue(SchedulerHalf, SCHEDULER)
        self.worker.__class__ = _rogue(WorkerHalf, (*WORKER, ANSWERING[-1]))

    def on_new_request(self, request: Any) -> None:
        """Also note how many blocks are free when a request arrives."""
        assert self._kv_cache_manager is not None
        free = self._kv_cache_manager.block_pool.get_num_free_blocks()
        Path(os.environ[FILE]).with_suffix(".free").write_text(str(free))
        super().on_new_request(request)
