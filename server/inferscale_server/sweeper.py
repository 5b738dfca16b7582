"""The sweeper: frees what has expired, now and then, as long as the server runs.

Knows: how often. Refuses to know: what freeing means. Nobody waits for it: what has expired is invisible before.
"""

from __future__ import annotations

import asyncio
import logging

from inferscale_server.errors import RequestError
from inferscale_server.memory import MemoryService

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 30.0


async def sweep_forever(memory: MemoryService, interval_s: float = SWEEP_INTERVAL_S) -> None:
    """Sweep now and every `interval_s` seconds until cancelled. A full or failing disk is tried again next time."""
    while True:
        try:
            await memory.maintain()
        except RequestError as error:
            logger.warning("what has expired could not be freed: %s", error.code)
        await asyncio.sleep(interval_s)
