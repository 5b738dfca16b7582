"""Background work that is done when somebody asks for it, and survives every fault of the engine.

Knows: when it is done again after a fault. Refuses to know what the work is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

PAUSE_S = 1.0
"""The wait after a fault; twice as long after each further one in a row."""
LONGEST_PAUSE_S = 30.0


async def work_when_woken(
    wake: asyncio.Event,
    work: Callable[[], Awaitable[None]],
    is_left: Callable[[], bool],
    doing: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Work each time that `wake` is set, until cancelled.

    A fault is logged as of `doing`. When anything `is_left` by it, the work is tried again after a pause, though nobody
    asks for it: KV of forgotten facts must not stay until the next event.
    """
    pause_s = PAUSE_S
    while True:
        await wake.wait()
        wake.clear()
        try:
            await work()
            pause_s = PAUSE_S
        except Exception as error:  # the background must outlive any fault of one command
            logger.error("%s failed: %s", doing, type(error).__name__, exc_info=error)
            if is_left():
                wake.set()
            await sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
