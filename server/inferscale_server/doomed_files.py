"""Files that nothing names any more and that are still to be unlinked.

Knows the order: who waits for a delete waits until the bytes are gone, others wait for nothing. Refuses to know why a
file goes. For one event loop; the unlinking itself is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from inferscale_server.kv_files import remove


class DoomedFiles:
    """Paths on their way out. A crash leaves them; whoever owns the folder finds them at the next start."""

    def __init__(self) -> None:
        self._paths: list[Path] = []
        self._unlinking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def add(self, paths: Iterable[Path]) -> None:
        """Unlink these with the next call of `gone`, `go` or `go_now`."""
        self._paths += paths

    async def gone(self) -> None:
        """Return when everything that was added before this call is unlinked, by whomever."""
        async with self._unlinking:
            if self._paths:
                paths, self._paths = self._paths, []
                await asyncio.to_thread(remove, paths)

    def go(self) -> None:
        """Unlink in the background, for those who must not wait."""
        if self._paths and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self.gone())

    def go_now(self) -> None:
        """Unlink before there is an event loop. Blocks."""
        paths, self._paths = self._paths, []
        remove(paths)
