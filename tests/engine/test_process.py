"""What the engine's processes are told when they start."""

from __future__ import annotations

import os
from typing import Any

from inferscale_server.engine.spin import FEW_PROCESSORS, SPIN_S

from .conftest import LiveServer


def _spin_default(worker: Any) -> float:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    return SpinCondition.__init__.__defaults__[0]


async def test_workers_spin_briefly_where_processors_are_few(server: LiveServer) -> None:
    (seconds,) = await server.engine.collective_rpc(_spin_default)
    assert seconds == (SPIN_S if (os.cpu_count() or 1) <= FEW_PROCESSORS else 1)
