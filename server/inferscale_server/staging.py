"""Staging: cold facts of one chat come from host memory or disk into the slab before the request is submitted.

Bounded by a deadline: what is not there by then goes in as text, and what was under way serves the next chat. Joins
catalog, host tier and files; refuses to know requests and tensors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.kv_codec import KvIdentity, digest_of
from inferscale_server.kv_disk import Filed, KvDisk
from inferscale_server.kv_shelf import ShelfKey
from inferscale_server.tiers import HostTier
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

ColdTier = Literal["host", "disk"]

TEXT_SHARE = 0.2
"""Staging may take so much of the time that computing the same tokens as text would take."""
FILES = 8
"""Chunks loaded from files at once; between two such parts the deadline is looked at."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text that a chat is about to use."""

    key: ChunkKey
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Cold:
    """A wanted text whose KV lies in a colder tier: as a copy in host memory, else as files."""

    wanted: Wanted
    held: Chunk | None = None
    identity: KvIdentity | None = None


class Stager:
    """Brings chunks up. One at a time: the deadline of a second chat covers its wait for the first."""

    def __init__(
        self,
        catalog: Catalog,
        wipe: Callable[[], Awaitable[None]],
        host: HostTier | None,
        disk: KvDisk | None,
        deadline_s: float,
        text_s: Callable[[int], float | None] = lambda tokens: None,
        on_result: Callable[[str, str], None] = lambda tier, result: None,
    ) -> None:
        """`wipe` zeroes the slab's rows that were let go; `text_s` says how long computing so many tokens takes, None
        when that was not measured; `on_result` hears of each chunk its tier and what became of it."""
        self._catalog, self._wipe, self._host, self._disk = catalog, wipe, host, disk
        self._deadline_s, self._text_s, self._on_result = deadline_s, text_s, on_result
        self.results: Counter[tuple[str, str]] = Counter()  # by tier and what became of a chunk
        self._busy = asyncio.Lock()
        self._in_flight: dict[int, Chunk] = {}
        self._forgotten: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def stage(self, wanted: Sequence[Wanted], patience_s: float | None = None) -> Mapping[int, ColdTier]:
        """Bring up what is cold, best first; returns where each chunk that came in time was, by stamp.

        `patience_s` takes the place of a chat's deadline for a caller that can wait longer. Returns at once, without a
        step of the event loop, when nothing is cold.
        """
        if self._deadline_s <= 0:
            return {}
        cold = [one for one in map(self._cold, wanted) if one is not None]
        if not cold:
            return {}
        until = perf_counter() + (self._allowed_s(cold) if patience_s is None else patience_s)
        came: dict[int, ColdTier] = {}
        warm = [chunk for chunk in (self._catalog.peek(one.key) for one in wanted) if chunk is not None]
        task = asyncio.create_task(self._bring(cold, warm, until, came))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait({task}, timeout=max(until - perf_counter(), 0.0))
        self._count_late(cold)
        return dict(came)

    def forget_facts(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """What is under way of these facts, or was encoded behind them, is dropped when it comes."""
        gone = set(fact_ids)
        self._forget(owner, lambda chunk: chunk.key.name in gone or not gone.isdisjoint(chunk.behind))

    def forget_owner(self, owner: Owner) -> None:
        """What is under way of this owner is dropped when it comes."""
        self._forget(owner, lambda chunk: True)

    def _forget(self, owner: Owner, doomed: Callable[[Chunk], bool]) -> None:
        flying = self._in_flight.items()
        self._forgotten |= {stamp for stamp, chunk in flying if chunk.key.owner == owner and doomed(chunk)}

    async def settled(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()
        await self.settled()

    # What is cold

    def _cold(self, wanted: Wanted) -> _Cold | None:
        """Where the text lies, when that is not the slab; None also when it lies nowhere."""
        if wanted.key in self._catalog:
            return None
        held = None if self._host is None else self._host.find(wanted.key, wanted.token_ids)
        if held is not None:
            return _Cold(wanted, held=held)
        identity = self._filed(wanted)
        return None if identity is None else _Cold(wanted, identity=identity)

    def _filed(self, wanted: Wanted) -> KvIdentity | None:
        if self._disk is None:
            return None
        key, ours = wanted.key, self._catalog.fingerprint
        stored = self._disk.shelf.get(ShelfKey(ours, key.owner.digest(), key.kind, key.name))
        if stored is None:
            return None
        return stored.identity if stored.identity.token_digest == digest_of(wanted.token_ids) else None

    def _allowed_s(self, cold: Sequence[_Cold]) -> float:
        """The deadline, or less where text would be there soon."""
        text_s = self._text_s(sum(len(one.wanted.token_ids) for one in cold))
        return self._deadline_s if text_s is None else min(self._deadline_s, TEXT_SHARE * text_s)

    # Bringing it up

    async def _bring(
        self, cold: Sequence[_Cold], warm: Sequence[Chunk], until: float, came: dict[int, ColdTier]
    ) -> None:
        async with self._busy:
            with self._catalog.pinned(warm):  # what the same chat uses must not make room for the rest of it
                for part in _parts(cold):
                    if perf_counter() >= until:
                        return
                    await self._bring_part(part, came)

    async def _bring_part(self, part: Sequence[_Cold], came: dict[int, ColdTier]) -> None:
        part = [one for one in part if one.wanted.key not in self._catalog]
        await self._make_room(sum(len(one.wanted.token_ids) for one in part))
        tier = _tier(part[0]) if part else "host"
        placed = self._place(part)
        done = [False] * len(placed)
        try:
            done = await self._fill(placed)
        finally:
            for (_, chunk), filled in zip(placed, done, strict=True):
                if self._settle(chunk, filled):
                    came[chunk.stamp] = tier
                self._count(tier, "staged" if filled else "failed")

    async def _make_room(self, rows: int) -> None:
        if rows > self._catalog.rows - self._catalog.rows_used:
            self._catalog.make_room(rows)
            await self._wipe()

    def _place(self, part: Sequence[_Cold]) -> list[tuple[_Cold, Chunk]]:
        """Rows for each, as far as there are any; nothing that was forgotten or replaced while room was made."""
        placed = []
        for cold in part:
            still = self._cold(cold.wanted)
            if still is None or (still.held is None) != (cold.held is None):
                continue
            behind = still.held.behind if still.held is not None else _behind(still.identity)
            chunk = self._catalog.reserve(cold.wanted.key, cold.wanted.token_ids, behind)
            if chunk is None:
                self._count(_tier(cold), "no_room")
                continue
            self._in_flight[chunk.stamp] = chunk
            placed.append((still, chunk))
        return placed

    async def _fill(self, placed: Sequence[tuple[_Cold, Chunk]]) -> list[bool]:
        if not placed:
            return []
        held = [(cold.held, chunk) for cold, chunk in placed if cold.held is not None]
        if held:
            assert self._host is not None
            return await self._host.promote(held)
        assert self._disk is not None
        return await self._disk.load([Filed(chunk, cold.identity) for cold, chunk in placed if cold.identity])

    def _settle(self, chunk: Chunk, filled: bool) -> bool:
        """Commit what came, unless its text was forgotten or it was encoded meanwhile."""
        del self._in_flight[chunk.stamp]
        forgotten = chunk.stamp in self._forgotten
        self._forgotten.discard(chunk.stamp)
        if not filled or forgotten or chunk.key in self._catalog:
            self._catalog.release(chunk)
            return False
        self._catalog.commit(chunk)
        return True

    def _count_late(self, cold: Sequence[_Cold]) -> None:
        for one in cold:
            if one.wanted.key not in self._catalog:
                self._count(_tier(one), "late")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("staging failed: %s", type(task.exception()).__name__, exc_info=task.exception())

    def _count(self, tier: ColdTier, result: str) -> None:
        self.results[tier, result] += 1
        self._on_result(tier, result)


def _parts(cold: Sequence[_Cold]) -> list[list[_Cold]]:
    """Host copies first, in one command each part; then files. Within a tier the order stays."""
    host = [one for one in cold if one.held is not None]
    files = [one for one in cold if one.held is None]
    return [tier[start : start + FILES] for tier in (host, files) for start in range(0, len(tier), FILES)]


def _tier(cold: _Cold) -> ColdTier:
    return "disk" if cold.held is None else "host"


def _behind(identity: KvIdentity | None) -> tuple[str, ...]:
    assert identity is not None
    return tuple(seen.fact_id for seen in identity.behind)
