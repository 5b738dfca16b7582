"""What an operator does to a running server's stores: back up, verify, clean up, embed anew. One at a time.

Knows: which of these may run beside writers and which must run between two writes. Refuses to know: HTTP, and how any
of them is done.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from inferscale_server.backup import Backup, back_up
from inferscale_server.cleanup import TOMBSTONE_DAYS, Cleaned, clean, sweep_kv
from inferscale_server.embed import Embedder, load_embedder
from inferscale_server.errors import Conflict, InferScaleError, InvalidRequest
from inferscale_server.memory import MemoryService
from inferscale_server.verify import Finding, Verdict, verify

logger = logging.getLogger(__name__)

EARLY_S = 2.0
"""How long a reindexing is waited for that may fail at once: its operator need not ask again to hear why."""


@dataclass(frozen=True, slots=True)
class Reindexing:
    """How far a reindexing is: facts done of how many. `reason` says why it failed. "loading": the new embedder."""

    embedder: str
    state: Literal["loading", "running", "done", "failed"] = "loading"
    done: int = 0
    total: int = 0
    reason: str | None = None


class Upkeep:
    """Belongs to one event loop. Every coroutine raises Conflict while another one, or a reindexing, runs."""

    def __init__(
        self,
        store: Path,
        memory: MemoryService,
        kv: Path | None = None,
        load: Callable[[str], Embedder] = load_embedder,
    ) -> None:
        """`store` is the file that `memory` writes, `kv` the folder of the KV files; `load` finds an embedder."""
        self._store = store
        self._memory = memory
        self._kv = kv
        self._load = load
        self._running: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self.reindexing: Reindexing | None = None

    async def back_up(self, target: Path, *, force: bool = False) -> Backup:
        """See `backup.back_up`; adds and searches go on meanwhile."""
        async with self._turn("backup"):
            return await asyncio.to_thread(back_up, self._store, target, force=force)

    async def verify(self) -> Verdict:
        """See `verify.verify`; adds and searches go on meanwhile. Looks also at what is in memory."""
        async with self._turn("verify"):
            verdict = await asyncio.to_thread(verify, self._store, self._kv)
            differ = await self._memory.disagreeing()
            reason = f"{differ} users' facts are not those of the store: restart the server" if differ else None
            return Verdict((*verdict.findings, Finding("index", "of the running server", reason)))

    async def clean(self, tombstone_days: float = TOMBSTONE_DAYS) -> Cleaned:
        """See `cleanup.clean`; searches go on meanwhile, adds and deletes wait while the store is rewritten.

        They do not wait while the KV files are read, all of them whole: minutes, where there are many.
        """
        async with self._turn("gc"):
            swept = 0 if self._kv is None else await asyncio.to_thread(sweep_kv, self._store, self._kv)
            cleaned = await self._memory.between_writes(
                lambda store: clean(store, self._store, tombstone_days=tombstone_days)
            )
            return replace(cleaned, kv_files=swept)

    async def reindex(self, embedder: str) -> Reindexing:
        """Begin to embed all facts with the embedder of this name; `reindexing` says how far it is.

        Searches, chats and adds go on with the old one until the switch at the end. A killed one is continued by the
        next with the same name. While an embedder is loaded, or downloaded, other commands go on too. Raises
        InvalidRequest for an embedder that is found to be missing within EARLY_S.
        """
        self._check_idle()
        if self._task is not None and not self._task.done():
            raise Conflict("reindex is running; try again when it has ended", code="upkeep_running")
        self.reindexing = Reindexing(embedder)
        loading = asyncio.create_task(asyncio.to_thread(self._load, embedder))
        self._task = asyncio.create_task(self._reindex(loading))
        await asyncio.wait((loading,), timeout=EARLY_S)
        if loading.done() and loading.exception() is not None:
            await self._task
            raise InvalidRequest(str(self.reindexing.reason), code="embedder_unavailable", param="embedder")
        return self.reindexing

    async def ended(self) -> None:
        """Return when no reindexing runs."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _reindex(self, loading: asyncio.Task[Embedder]) -> None:
        try:
            embedder = await loading
            while self._running is not None:
                await self._idle.wait()
            async with self._turn("reindex"):
                self._note(state="running")
                number = await self._memory.reindex(embedder, self._tell)
        except InferScaleError as error:
            self._note(state="failed", reason=str(error))
        except Exception as error:  # a library's: without this the operator would wait for ever
            where = "".join(traceback.format_tb(error.__traceback__))  # not its message: it may quote a fact
            logger.error("reindex: %s in the embedder\n%s", type(error).__name__, where)
            self._note(state="failed", reason=f"{type(error).__name__} in the embedder; the log says where")
        else:
            self._note(state="done", done=number, total=number)

    def _tell(self, done: int, total: int) -> None:
        self._note(done=done, total=total)

    def _note(self, **news: Any) -> None:
        assert self.reindexing is not None
        self.reindexing = replace(self.reindexing, **news)

    def _check_idle(self) -> None:
        if self._running is not None:
            raise Conflict(f"{self._running} is running; try again when it has ended", code="upkeep_running")

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        self._check_idle()
        self._running = name
        self._idle.clear()
        try:
            yield
        finally:
            self._running = None
            self._idle.set()
