"""Staging: cold facts of one chat come from host memory or disk into the slab before the request is submitted.

Bounded by a deadline: what is not there by then goes in as text, and what was under way serves the next chat. Joins
catalog, host tier and files; refuses to know requests and tensors.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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
StageResult = Literal["staged", "late", "no_room", "failed", "overtaken"]
"""What became of a cold text that a chat wanted, as far as this chat goes: one word each (docs/tiers.md)."""

TEXT_SHARE = 0.2
"""Staging may take so much of the time that computing the same tokens as text would take."""
FILES = 8
"""Chunks loaded from files at once; between two such parts the deadline is looked at."""
NEWEST_SHARE = 0.25
"""How much the newest part counts in how long a tier takes."""


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


@dataclass(frozen=True, slots=True)
class Coming:
    """What of one chat could be brought up, best first, and what lies in the slab already.

    `tokens` are those that could come; `seconds`: how long that would take by what it took so far, 0.0 when nothing was
    brought up yet, and no longer than a chat waits.
    """

    cold: tuple[_Cold, ...] = ()
    warm: tuple[Chunk, ...] = ()
    tokens: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.cold)


@dataclass(slots=True)
class _Chat:
    """One chat that waits until then, the texts of which nothing became yet, and where what came was, by stamp."""

    until: float
    open: dict[ChunkKey, ColdTier]
    came: dict[int, ColdTier] = field(default_factory=dict)


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
        self._s_per_token: dict[ColdTier, float] = {}  # as measured

    async def stage(self, wanted: Sequence[Wanted], patience_s: float | None = None) -> Mapping[int, ColdTier]:
        """Bring up what is cold of these; see `coming` and `bring`."""
        return await self.bring(self.coming(wanted), patience_s)

    def coming(self, wanted: Sequence[Wanted]) -> Coming:
        """What of these (best first) lies in colder tiers, to be asked before `bring`. Nothing when staging is off."""
        if self._deadline_s <= 0:
            return Coming()
        cold = tuple(one for one in map(self._cold, wanted) if one is not None)
        if not cold:
            return Coming()
        warm = tuple(chunk for chunk in (self._catalog.peek(one.key) for one in wanted) if chunk is not None)
        tokens = [(_tier(one), len(one.wanted.token_ids)) for one in cold]
        seconds = sum(self._s_per_token.get(tier, 0.0) * count for tier, count in tokens)
        return Coming(cold, warm, sum(count for _, count in tokens), min(seconds, self._allowed_s(cold)))

    async def bring(self, coming: Coming, patience_s: float | None = None) -> Mapping[int, ColdTier]:
        """Bring up what is cold, best first; returns where each chunk that came in time was, by stamp.

        `patience_s` takes the place of a chat's deadline for a caller that can wait longer. Returns at once, without a
        step of the event loop, when nothing is cold.
        """
        if not coming:
            return {}
        until = perf_counter() + (self._allowed_s(coming.cold) if patience_s is None else patience_s)
        chat = _Chat(until, {one.wanted.key: _tier(one) for one in coming.cold})
        task = asyncio.create_task(self._bring(coming, chat))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=max(until - perf_counter(), 0.0))
        finally:
            self._close(chat, "failed" if _is_faulty(task) else "late")
        return dict(chat.came)

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
        key, ours = wanted.key, self._catalog.fingerprint_of(wanted.key.owner)
        stored = self._disk.shelf.get(ShelfKey(ours, key.owner.digest(), key.kind, key.name))
        if stored is None:
            return None
        return stored.identity if stored.identity.token_digest == digest_of(wanted.token_ids) else None

    def _allowed_s(self, cold: Sequence[_Cold]) -> float:
        """The deadline, or less where text would be there soon."""
        text_s = self._text_s(sum(len(one.wanted.token_ids) for one in cold))
        return self._deadline_s if text_s is None else min(self._deadline_s, TEXT_SHARE * text_s)

    # Bringing it up

    async def _bring(self, coming: Coming, chat: _Chat) -> None:
        async with self._busy:
            with ExitStack() as held:  # what a chat uses must not make room for the rest of it
                held.enter_context(self._catalog.pinned(coming.warm))
                for part in _parts(coming.cold):
                    if perf_counter() >= chat.until:
                        return
                    came = await self._bring_part(part, chat)
                    held.enter_context(self._catalog.pinned(came))

    async def _bring_part(self, part: Sequence[_Cold], chat: _Chat) -> list[Chunk]:
        """Returns what can be found now."""
        tier, started = _tier(part[0]), perf_counter()
        await self._make_room([len(one.wanted.token_ids) for one in part if one.wanted.key not in self._catalog])
        placed = self._place(part, chat)
        done, came = [False] * len(placed), []
        try:
            done = await self._fill(placed)
        finally:
            for (_, chunk), filled in zip(placed, done, strict=True):
                result = self._settle(chunk, filled)
                if result == "staged":
                    chat.came[chunk.stamp] = tier
                    came.append(chunk)
                self._count(chat, chunk.key, result)
        self._note_pace(tier, sum(len(chunk.token_ids) for _, chunk in placed), perf_counter() - started)
        return came

    def _note_pace(self, tier: ColdTier, tokens: int, seconds: float) -> None:
        if tokens:
            newest = seconds / tokens
            before = self._s_per_token.get(tier, newest)
            self._s_per_token[tier] = before + NEWEST_SHARE * (newest - before)

    async def _make_room(self, lengths: Sequence[int]) -> None:
        if sum(lengths) > self._catalog.rows - self._catalog.rows_used:
            self._catalog.make_room_for(lengths)
            await self._wipe()

    def _place(self, part: Sequence[_Cold], chat: _Chat) -> list[tuple[_Cold, Chunk]]:
        """Rows for each, as far as there are any; nothing that came, went or was replaced since it was wanted."""
        placed = []
        for cold in part:
            still = self._cold(cold.wanted)
            if still is None or (still.held is None) != (cold.held is None):
                self._count(chat, cold.wanted.key, "overtaken" if still is None else "failed")
                continue
            behind = still.held.behind if still.held is not None else _behind(still.identity)
            chunk = self._catalog.reserve(cold.wanted.key, cold.wanted.token_ids, behind)
            if chunk is None:
                self._count(chat, cold.wanted.key, "no_room")
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

    def _settle(self, chunk: Chunk, filled: bool) -> StageResult:
        """Commit what came, unless its text was forgotten or it was encoded meanwhile."""
        del self._in_flight[chunk.stamp]
        forgotten = chunk.stamp in self._forgotten
        self._forgotten.discard(chunk.stamp)
        if filled and not forgotten and chunk.key not in self._catalog:
            self._catalog.commit(chunk)
            self._catalog.get(chunk.key)  # in use from now on: what comes for another chat pushes out others first
            return "staged"
        self._catalog.release(chunk)
        return "overtaken" if forgotten or chunk.key in self._catalog else "failed"

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("staging failed: %s", type(task.exception()).__name__, exc_info=task.exception())

    def _count(self, chat: _Chat, key: ChunkKey, result: StageResult) -> None:
        """The first word about a text counts: what comes after its chat's deadline was late."""
        tier = chat.open.pop(key, None)
        if tier is not None:
            self.results[tier, result] += 1
            self._on_result(tier, result)

    def _close(self, chat: _Chat, result: StageResult) -> None:
        for key in tuple(chat.open):
            self._count(chat, key, result)


def _parts(cold: Sequence[_Cold]) -> list[list[_Cold]]:
    """Host copies first, in one command each part; then files. Within a tier the order stays."""
    host = [one for one in cold if one.held is not None]
    files = [one for one in cold if one.held is None]
    return [tier[start : start + FILES] for tier in (host, files) for start in range(0, len(tier), FILES)]


def _is_faulty(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _tier(cold: _Cold) -> ColdTier:
    return "disk" if cold.held is None else "host"


def _behind(identity: KvIdentity | None) -> tuple[str, ...]:
    assert identity is not None
    return tuple(seen.fact_id for seen in identity.behind)
