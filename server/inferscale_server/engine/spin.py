"""How long vLLM's processes spin on each other's queues before they sleep: shorter where processors are few.

vLLM's scheduler and its workers spin for up to a second after each message, which on a large machine saves
microseconds. On two cores the spinning scheduler takes the processor that the worker's second thread needs, in every
parallel loop.
"""

from __future__ import annotations

import os

FEW_PROCESSORS = 4
SPIN_S = 0.0002


def spin_briefly() -> None:
    """Shorten the default in this process. Does nothing on larger machines, or if vLLM has changed there."""
    if (os.cpu_count() or 1) > FEW_PROCESSORS:
        return
    try:
        from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    except ImportError:
        return
    if SpinCondition.__init__.__defaults__ == (1,):
        SpinCondition.__init__.__defaults__ = (SPIN_S,)
