"""One batch of chunks on its way into the slab: rows, the engine's requests, the check that all of each came.

Knows: how often to try, what is in flight, what was forgotten meanwhile. Refuses to know: which chunks are worth it, in
which order (encode.py), what stands before them (recipe.py), and vLLM (behind EncodeEngine).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Literal

from inferscale_server.behind import Behind
from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS
from inferscale_server.job import EncodeEngine, EncodeResult, Errand, Outcome, Run, TokenKind, runs_of
from inferscale_server.kv_codec import KvIdentity
from inferscale_server.kv_disk import Filed, KvDisk
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

MAX_TRIES = 3
WIPE_EXTENTS = 32
"""Extents zeroed by one command to the workers."""


@dataclass(frozen=True, slots=True)
class Placed:
    """An errand that has rows."""

    errand: Errand
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears what became of each chunk, and how many tokens were computed for what."""

    on_result: Callable[[EncodeResult], None] = lambda result: None
    on_tokens: Callable[[TokenKind, int], None] = lambda kind, tokens: None


class Batches:
    """Encodes or loads chunks, one batch at a time. `results` and `tokens` count since the start."""

    def __init__(
        self,
        catalog: Catalog,
        engine: EncodeEngine,
        header: ChunkKey,
        max_model_len: int,
        listeners: Listeners,
        disk: KvDisk | None,
    ) -> None:
        """`header` is the key of the chunk that stands first in what facts are encoded behind."""
        self._catalog, self._engine, self._header = catalog, engine, header
        self._max_model_len, self._listeners, self._disk = max_model_len, listeners, disk
        self.tries: Counter[ChunkKey] = Counter()
        self.in_flight: dict[int, Chunk] = {}
        self.asked: dict[Owner, set[ChunkKey]] = {}  # wanted by a chat
        self._placing: set[Owner] = set()  # whose jobs wait for rows; leaves it when something is forgotten meanwhile
        self._forgotten: set[int] = set()  # stamps whose text was forgotten while being encoded
        self._wiping = asyncio.Lock()
        self.results: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    # What is asked of a batch

    def finds(self, errand: Errand) -> bool:
        """Does this lie on the disk, encoded behind the very same?"""
        return self._disk is not None and self._disk.finds(self._identity(errand))

    async def load(self, errands: Sequence[Errand]) -> int:
        """Load those that lie on the disk; returns how many are there now."""
        found = [errand for errand in errands if self.finds(errand)]
        if self._disk is None or not found:
            return 0
        placed = await self._place(found, ())
        done = [False] * len(placed)
        try:
            done = await self._disk.load([self._filed(one) for one in placed])
        finally:
            for one, loaded in zip(placed, done, strict=True):
                self._settle(one, "loaded" if loaded else None)
        return sum(done)

    async def encode(self, errands: Sequence[Errand]) -> int:
        """Encode, check that all of each came, and commit; returns how many were placed or given up."""
        fitting = [errand for errand in errands if self._fits(errand)]
        placed = await self._place(fitting, [lead for errand in fitting for lead in self._lead(errand)])
        runs = runs_of((one.errand, one.chunk) for one in placed)
        outcomes: dict[int, Outcome] = {}
        try:
            if placed:
                await self._run(runs, placed[0].errand.staged)
                complete = await self._complete(runs)
                outcomes = {stamp: what for run in runs for stamp, what in run.outcomes(complete).items()}
        finally:
            for scratch in [run.scratch for run in runs if run.scratch is not None]:
                self._catalog.release(scratch)
            for one in placed:
                self._settle(one, outcomes.get(one.chunk.stamp, "incomplete"))
        return len(placed) + len(errands) - len(fitting)

    async def wipe(self) -> None:
        """Zero the rows that were let go; they are free afterwards. Callers wait for each other."""
        async with self._wiping:
            while extents := self._catalog.unwiped[:WIPE_EXTENTS]:
                await self._engine.wipe(extents)
                self._catalog.wiped(extents)

    def want(self, key: ChunkKey) -> None:
        """A chat used this as text: it is worth evicting others for."""
        self.asked.setdefault(key.owner, set()).add(key)

    def wants(self, key: ChunkKey) -> bool:
        """Did a chat use this as text?"""
        return key in self.asked.get(key.owner, ())

    def first_asked(self, among: Container[Owner]) -> Owner | None:
        """One of these for whom something is wanted, each in turn: who chats waits behind nobody who does not."""
        found = next((owner for owner in self.asked if owner in among), None)
        if found is not None:
            self.asked[found] = self.asked.pop(found)
        return found

    def wants_no_more(self, key: ChunkKey) -> None:
        """The chat's wish is forgotten or fulfilled."""
        keys = self.asked.get(key.owner, set())
        keys.discard(key)
        if not keys:
            self.asked.pop(key.owner, None)

    def given_up(self, key: ChunkKey) -> bool:
        """Was it tried too often?"""
        return self.tries[key] >= MAX_TRIES

    def given_up_facts(self) -> list[ChunkKey]:
        """The facts that were tried too often."""
        return [key for key in self.tries if key.kind == "fact" and self.given_up(key)]

    # Forgetting

    def drop(self, owner: Owner, doomed: Callable[[Chunk], bool]) -> tuple[Chunk, ...]:
        """Drop what can be found and what is in flight, at once; returns what could be found."""
        self._placing.discard(owner)
        found = self._catalog.drop_where(owner, doomed)
        in_flight = self.in_flight.items()
        self._forgotten |= {stamp for stamp, chunk in in_flight if chunk.key.owner == owner and doomed(chunk)}
        return found

    def spoil(self, owner: Owner) -> None:
        """What is in flight for the owner is useless when it comes."""
        self._forgotten |= {stamp for stamp, chunk in self.in_flight.items() if chunk.key.owner == owner}

    def forget_tries(self, owner: Owner, doomed: Callable[[ChunkKey], bool]) -> None:
        """What comes under these keys is something new."""
        for key in [key for key in self.tries if key.owner == owner and doomed(key)]:
            del self.tries[key]

    # Steps of a batch

    async def _run(self, runs: Sequence[Run], staged: bool) -> None:
        leads = [self._chunks_before(run.chunks[0].key.owner, run.behind, staged) for run in runs]
        held = [chunk for lead in leads for chunk in lead]
        self._catalog.touch(held)
        with self._catalog.pinned(held):
            asked = [self._ask(run, lead) for run, lead in zip(runs, leads, strict=True)]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                logger.warning("an encode request failed: %s", type(outcome).__name__, exc_info=outcome)

    async def _ask(self, run: Run, lead: Sequence[Chunk]) -> None:
        """One run. From asking the engine how much it may be asked until it is asked, nothing else must happen."""
        most_tokens, uncovered, owner = self._engine.most_tokens(), run.uncovered(lead), run.chunks[0].key.owner
        if most_tokens is not None and uncovered:
            key = ChunkKey("context", owner, "scratch")
            run.scratch = self._catalog.reserve(key, uncovered, run.behind.fact_ids)
        self._count_tokens("own", sum(len(chunk.token_ids) for chunk in run.chunks))
        self._count_tokens("prefix", len(uncovered))
        for request in run.requests(lead, most_tokens):
            self._count_tokens("spare", SPARE_TOKENS)
            await self._engine.encode(request.prompt_ids, request.command, owner.adapter)

    async def _complete(self, runs: Sequence[Run]) -> frozenset[int]:
        """Stamps of what came whole, on every rank."""
        asked = [(chunk.stamp, chunk.extents) for run in runs for chunk in run.captured]
        done = await self._engine.captured(asked)
        return frozenset(stamp for (stamp, _), whole in zip(asked, done, strict=True) if whole)

    def _lead(self, errand: Errand) -> list[Chunk]:
        return self._chunks_before(errand.job.key.owner, errand.behind, errand.staged)

    def _chunks_before(self, owner: Owner, behind: Behind, staged: bool) -> list[Chunk]:
        """The chunks of the first part of the prefix that were encoded behind the very same: injecting them is exact.

        What stands behind the first gap is computed as text.
        """
        header = self._catalog.peek(self._header.read_by(owner))
        if header is None or not behind.header:
            return []
        found, ids = [header], behind.fact_ids
        look = self._catalog.staged if staged else self._catalog.peek
        for place, line in enumerate(behind.lines):
            chunk = look(ChunkKey("fact", owner, line.fact_id))
            if chunk is None or chunk.behind != ids[:place] or chunk.token_ids != line.token_ids:
                break
            found.append(chunk)
        return found

    async def _place(self, errands: Sequence[Errand], held: Sequence[Chunk]) -> list[Placed]:
        """Rows for each, as far as there are any; evicts for what is urgent, never the held chunks."""
        with self._catalog.pinned(held):
            rows = 0
            for errand in errands:
                if errand.urgent:
                    rows += len(errand.job.token_ids)
                    self._catalog.make_room(rows)
            self._placing = {errand.job.key.owner for errand in errands}
            await self.wipe()
        errands = [errand for errand in errands if errand.job.key.owner in self._placing]
        placed = [Placed(errand, chunk) for errand in errands if (chunk := self._reserve(errand)) is not None]
        self.in_flight |= {one.chunk.stamp: one.chunk for one in placed}
        return placed

    def _reserve(self, errand: Errand) -> Chunk | None:
        return self._catalog.reserve(errand.job.key, errand.job.token_ids, errand.behind.fact_ids)

    def _fits(self, errand: Errand) -> bool:
        if errand.job.token_ids and errand.length < self._max_model_len:
            return True
        self.tries[errand.job.key] = MAX_TRIES
        self._count("failed")
        return False

    def _settle(self, one: Placed, result: Literal["stored", "loaded", "incomplete"] | None) -> None:
        """None: the file did not check out, and the encoder turns to the text."""
        chunk = one.chunk
        del self.in_flight[chunk.stamp]
        if result is not None:
            self.wants_no_more(chunk.key)
        if chunk.stamp in self._forgotten:
            self._forgotten.discard(chunk.stamp)
            self._catalog.release(chunk)
            if result is not None:
                self._count("dropped")
        elif result in ("stored", "loaded"):
            self._commit(one, result == "stored")
            self._count(result)
        else:
            self._catalog.release(chunk)
            if result is not None:
                self.tries[chunk.key] += 1
                self._count(result)

    def _commit(self, one: Placed, new: bool) -> None:
        self.tries.pop(one.chunk.key, None)
        if one.errand.staged:
            self._catalog.stage(one.chunk)
        else:
            self._catalog.commit(one.chunk)
        if self._disk is not None and new:
            self._disk.put(one.chunk, self._identity(one.errand))

    def _filed(self, one: Placed) -> Filed:
        return Filed(one.chunk, self._identity(one.errand))

    def _identity(self, errand: Errand) -> KvIdentity:
        job = errand.job
        return errand.behind.identity(self._catalog.fingerprint_of(job.key.owner), job.key, job.mark, job.token_ids)

    def _count(self, result: EncodeResult) -> None:
        self.results[result] += 1
        self._listeners.on_result(result)

    def _count_tokens(self, kind: TokenKind, tokens: int) -> None:
        self.tokens[kind] += tokens
        self._listeners.on_tokens(kind, tokens)
