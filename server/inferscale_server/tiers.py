"""The host tier: a second copy of chunk KV in host memory, from which what was evicted comes back without encoding.

Every chunk that becomes servable is copied in the background, so that eviction from the device costs nothing: the copy
is there already. Knows both catalogs and the queue of copies; refuses to know tensors, files and requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import Extent
from inferscale_server.row_copy import Direction, RowCopy
from inferscale_server.types import Owner
from inferscale_server.woken import work_when_woken

COPIES = 8
"""Chunks that one command copies: the engine does nothing else meanwhile."""
WIPE_EXTENTS = 32


class CopyEngine(Protocol):
    """The workers as this file sees them."""

    async def copy(self, direction: Direction, copies: Sequence[RowCopy]) -> list[bool]:
        """Copy rows on every rank; False where the source rows hold another encoding by now."""

    async def wipe_host(self, extents: Sequence[Extent]) -> None:
        """Zero host rows on every rank."""


class HostTier:
    """Chunks in host memory. `catalog` says which rows hold what; its chunks have the keys of the device's."""

    def __init__(self, device: Catalog, rows: int, engine: CopyEngine) -> None:
        self.catalog = Catalog(rows, device.fingerprint)
        self.results: Counter[str] = Counter()  # of copies to the host: copied, replaced, no_room
        self._device, self._engine = device, engine
        self._waiting: OrderedDict[ChunkKey, Chunk] = OrderedDict()
        self._copying: dict[ChunkKey, Chunk] = {}  # under way, and its text was not forgotten meanwhile
        self._wake = asyncio.Event()
        self.catalog.on_unwiped = self._wake.set

    def status(self) -> dict[str, object]:
        """Rows, copies and counts for the operator."""
        rows = {"rows": self.catalog.rows, "rows_used": self.catalog.rows_used}
        return {**rows, "waiting": self.waiting, "copies": dict(self.results)}

    @property
    def waiting(self) -> int:
        """Chunks that are still to be copied."""
        return len(self._waiting)

    def note(self, chunk: Chunk) -> None:
        """This chunk can be found on the device now: copy it when there is time, unless it came from here."""
        held = self.catalog.peek(chunk.key)
        if held is None or (held.token_ids, held.behind) != (chunk.token_ids, chunk.behind):
            self._waiting[chunk.key] = chunk
            self._wake.set()

    def find(self, key: ChunkKey, token_ids: tuple[int, ...]) -> Chunk | None:
        """The copy of exactly these tokens, now the most recently used; its rows are host rows."""
        held = self.catalog.get(key)
        return held if held is not None and held.token_ids == token_ids else None

    async def promote(self, pairs: Sequence[tuple[Chunk, Chunk]]) -> list[bool]:
        """Fill each device chunk's reserved rows from its copy; which of them hold it now?"""
        copies = [RowCopy(held.extents, held.stamp, chunk.extents, chunk.stamp) for held, chunk in pairs]
        with self.catalog.pinned(held for held, _ in pairs):
            return await self._engine.copy("to_device", copies)

    def forget_facts(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """Nothing of these facts, or encoded behind them, comes back; its rows are wiped."""
        gone = set(fact_ids)
        self._forget(owner, gone)

    def forget_owner(self, owner: Owner) -> None:
        """Nothing of this owner comes back; its rows are wiped."""
        self._forget(owner, None)

    def _forget(self, owner: Owner, gone: set[str] | None) -> None:
        """`gone` None: everything of the owner."""

        def doomed(chunk: Chunk) -> bool:
            return gone is None or chunk.key.name in gone or not gone.isdisjoint(chunk.behind)

        for coming in (self._waiting, self._copying):
            for key in [key for key, chunk in coming.items() if key.owner == owner and doomed(chunk)]:
                del coming[key]
        self.catalog.drop_where(owner, doomed)

    # The background task

    async def run(self) -> None:
        """Copy and wipe until cancelled. A fault of the engine is logged, and the chunks that were being copied stay
        without a copy; what still waits to be copied or wiped is tried again after a pause."""
        await work_when_woken(self._wake, self._work, self._is_left, "copying to host memory")

    async def _work(self) -> None:
        while await self.copy_some():
            pass
        await self.wipe()

    def _is_left(self) -> bool:
        return bool(self._waiting or self.catalog.unwiped)

    async def copy_some(self) -> bool:
        """Copy the next few; True when there was something to copy. Only the background task calls this."""
        part = self._take_waiting()
        if not part:
            return False
        self.catalog.make_room_for([len(chunk.token_ids) for chunk in part])
        await self.wipe()
        pairs = [(chunk, self.catalog.reserve(chunk.key, chunk.token_ids, chunk.behind)) for chunk in part]
        placed = [(chunk, copy) for chunk, copy in pairs if copy is not None and self._device.holds(chunk)]
        for chunk, copy in pairs:
            if copy is None:
                self.results["no_room"] += 1
            elif not self._device.holds(chunk):
                self.catalog.release(copy)
        await self._copy(placed)
        return True

    def _take_waiting(self) -> list[Chunk]:
        """The next few that still lie on the device: no more than the tier has rows for, unless one alone is more."""
        part: list[Chunk] = []
        room = self.catalog.rows
        while self._waiting and len(part) < COPIES:
            chunk = next(iter(self._waiting.values()))
            if part and len(chunk.token_ids) > room:
                break
            del self._waiting[chunk.key]
            if self._device.holds(chunk):
                part.append(chunk)
                room -= len(chunk.token_ids)
        return part

    async def _copy(self, placed: Sequence[tuple[Chunk, Chunk]]) -> None:
        orders = [RowCopy(chunk.extents, chunk.stamp, copy.extents, copy.stamp) for chunk, copy in placed]
        self._copying = {chunk.key: chunk for chunk, _ in placed}
        done = [False] * len(placed)
        try:
            with self._device.pinned(chunk for chunk, _ in placed):
                done = await self._engine.copy("to_host", orders) if orders else []
        finally:
            for (chunk, copy), copied in zip(placed, done, strict=True):
                if copied and chunk.key in self._copying:
                    self.catalog.commit(copy)
                    self.results["copied"] += 1
                else:
                    self.catalog.release(copy)
                    self.results["replaced"] += 1
            self._copying = {}

    async def wipe(self) -> None:
        """Zero the host rows that were let go. Only the background task calls this."""
        while extents := self.catalog.unwiped[:WIPE_EXTENTS]:
            await self._engine.wipe_host(extents)
            self.catalog.wiped(extents)
