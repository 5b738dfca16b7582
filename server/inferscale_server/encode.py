"""The encoder: turns facts into chunk KV in the background, inside the serving engine.

Knows: the queue, the order of work, how often to try. Refuses to know: vLLM (behind EncodeEngine), which text is good
to be encoded behind (recipe.py), where rows are (catalog.py). Runs on the event loop; the sink methods are quick and
never raise.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inferscale_server.behind import EncodedPrimer, PrimerText, primer_text
from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command, Extent
from inferscale_server.recipe import Prefix, Recipe
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import Fact, Owner
from inferscale_server.wording import fact_line

logger = logging.getLogger(__name__)

BATCH = 8
"""Encode requests in flight at once: each injects the whole prefix, which delays the step that a chat may be in."""
MAX_TRIES = 3

EncodeResult = Literal["stored", "incomplete", "failed", "dropped"]


class EncodeEngine(Protocol):
    """The serving engine as the encoder sees it."""

    async def encode(self, prompt_ids: Sequence[int], command: Command) -> None:
        """Prefill the prompt with the command's injection and capture; under a salt of its own."""

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        """For each (stamp, rows): was it written completely, on every rank?"""

    async def wipe(self, extents: Sequence[Extent]) -> None:
        """Zero these rows on every rank."""


@dataclass(frozen=True, slots=True)
class Job:
    """One chunk to encode: its own tokens behind the prefix's."""

    key: ChunkKey
    token_ids: tuple[int, ...]


class Encoder:
    """Background encoding of all owners, one owner's batch at a time, in turns."""

    def __init__(
        self,
        catalog: Catalog,
        recipe: Recipe,
        engine: EncodeEngine,
        tokenize: LineTokenizer,
        header: Job,
        facts_of: Callable[[Owner], Sequence[Fact]],
        max_model_len: int,
        on_result: Callable[[EncodeResult], None] = lambda result: None,
    ) -> None:
        """`header` is the default one, behind which facts are encoded; `facts_of` gives an owner's, oldest first."""
        self._catalog, self._recipe, self._engine = catalog, recipe, engine
        self._tokenize, self._header, self._facts_of = tokenize, header, facts_of
        self._max_model_len = max_model_len
        self._on_result = on_result
        self._prefixes: dict[Owner, Prefix] = {}
        self._loose: OrderedDict[ChunkKey, Job] = OrderedDict({header.key: header})  # headers and contexts
        self._dirty: OrderedDict[Owner, None] = OrderedDict()
        self._asked: set[ChunkKey] = set()  # wanted by a chat: worth evicting others for
        self._tries: Counter[ChunkKey] = Counter()
        self._in_flight: dict[int, Chunk] = {}
        self._forgotten: set[int] = set()  # stamps whose text was forgotten while being encoded
        self._wake = asyncio.Event()
        self._wake.set()
        catalog.on_unwiped = self._wake.set
        self._busy = False
        self._at_work: tuple[Owner, ...] = ()  # whose batch is in flight
        self.results: Counter[str] = Counter()

    # What others tell the encoder

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These facts exist now."""
        self._mark(owner)

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """Drop the facts' KV and whatever was encoded behind them, at once; the latter is queued again."""
        gone = set(fact_ids)
        prefix = self._prefixes.get(owner)
        if prefix is not None and gone & set(prefix.fact_ids):
            del self._prefixes[owner]
        self._drop(lambda chunk: chunk.key.owner == owner and (chunk.key.name in gone or bool(gone & chunk.behind)))
        for key in [key for key in self._tries if key.owner == owner and key.name in gone]:
            del self._tries[key]
        self._mark(owner)

    def owner_forgotten(self, owner: Owner) -> None:
        """Drop all KV of an owner, at once."""
        self._prefixes.pop(owner, None)
        self._dirty.pop(owner, None)
        self._asked = {key for key in self._asked if key.owner != owner}
        for book in (self._loose, self._tries):
            for key in [key for key in book if key.owner == owner]:
                del book[key]
        self._drop(lambda chunk: chunk.key.owner == owner)
        self._wake.set()

    def want(self, owner: Owner, jobs: Sequence[Job]) -> None:
        """A chat used these as text: encode them soon, even if others must be evicted for it."""
        for job in jobs:
            self._asked.add(job.key)
            if job.key.kind in ("header", "context") and self._tries[job.key] < MAX_TRIES:
                self._loose.setdefault(job.key, job)
        if any(job.key.kind == "fact" for job in jobs):
            self._dirty[owner] = None
        self._wake.set()

    def queued(self) -> int:
        """Chunks still to be encoded."""
        waiting = sum(len(self._pending(owner)) for owner in {*self._dirty, *self._at_work})
        return max(len(self._loose) + waiting - len(self._in_flight), 0)

    def running(self) -> int:
        """Chunks being encoded right now; at least 1 as long as the background is at work."""
        return max(len(self._in_flight), int(self._busy))

    # The background task

    async def run(self) -> None:
        """Work until cancelled. A fault of the engine is logged and tried again with the next event."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.drain()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the background must outlive any fault of one batch
                logger.error("encoding failed: %s", type(error).__name__, exc_info=error)
                await asyncio.sleep(1.0)

    async def drain(self) -> None:
        """Encode all that is queued: headers and contexts first, then a batch of each owner in turn. One at a time."""
        assert not self._busy, "the encoder is drained by one task"
        self._busy = True
        try:
            await self._drain()
        finally:
            self._busy = False

    async def _drain(self) -> None:
        while self._loose or self._dirty:
            await self._wipe()
            if self._loose:
                await self._encode_loose()
            else:
                await self._encode_next_owner()
        await self._wipe()

    async def _encode_next_owner(self) -> None:
        owner, _ = self._dirty.popitem(last=False)
        self._at_work = (owner,)
        try:
            await self._encode_owner(owner)
        except Exception:
            self._dirty[owner] = None  # the engine's fault must not make the background forget who waits
            raise
        finally:
            self._at_work = ()

    async def _encode_loose(self) -> None:
        job = next(iter(self._loose.values()))
        owner = job.key.owner
        prefix = self._choose_prefix(owner) if job.key.kind == "context" else Prefix(header=False)
        chunk = await self._primer(owner, prefix)
        if self._loose.pop(job.key, None) is None:
            return  # its owner was forgotten while the prefix was being encoded
        if prefix.header and chunk is None:
            self._tries[job.key] += 1
        else:
            await self._encode_batch([job], chunk)
        if job.key not in self._catalog and 0 < self._tries[job.key] < MAX_TRIES:
            self._loose[job.key] = job

    async def _encode_owner(self, owner: Owner) -> None:
        prefix = self._choose_prefix(owner)
        if not self._pending(owner):
            return
        chunk = await self._primer(owner, prefix)
        if self._prefixes.get(owner) != prefix:
            return  # something that it holds was forgotten meanwhile, and the owner is queued again
        if prefix.header and chunk is None:
            self._retry_prefix(owner, prefix)
            return
        pending = self._pending(owner)  # anew: facts may have been forgotten while the prefix was being encoded
        if await self._encode_batch(pending[:BATCH], chunk, frozenset(prefix.fact_ids)):
            self._dirty[owner] = None

    def _retry_prefix(self, owner: Owner, prefix: Prefix) -> None:
        """An incomplete prefix is encoded again; one without room, or tried too often, leaves the facts as text."""
        if 0 < self._tries[self._primer_job(owner, self._primer_text(owner, prefix)).key] < MAX_TRIES:
            self._dirty[owner] = None

    def _choose_prefix(self, owner: Owner) -> Prefix:
        ids = [fact.id for fact in self._facts_of(owner)]
        prefix = self._recipe.prefix(ids, self._prefixes.get(owner))
        self._prefixes[owner] = prefix
        return prefix

    def _pending(self, owner: Owner) -> list[Job]:
        """Facts without a chunk, then facts whose chunk was encoded behind another prefix than the current one."""
        prefix = self._prefixes.get(owner)
        missing, stale = [], []
        by_key = {chunk.key: chunk for chunk in self._catalog.of(owner)}
        for fact in self._facts_of(owner):
            key = ChunkKey("fact", owner, fact.id)
            if self._tries[key] >= MAX_TRIES:
                continue
            chunk = by_key.get(key)
            if chunk is None:
                missing.append(self.job_of(fact))
            elif prefix is not None and chunk.behind != frozenset(prefix.fact_ids):
                stale.append(self.job_of(fact))
        return missing + stale

    def job_of(self, fact: Fact) -> Job:
        """The job that encodes one fact."""
        line = fact_line(fact.text, fact.speaker, fact.occurred_at)
        return Job(ChunkKey("fact", fact.owner, fact.id), self._tokenize(line))

    async def _primer(self, owner: Owner, prefix: Prefix) -> EncodedPrimer | None:
        """Header and primer facts, encoded now unless they are there; None without a prefix or without success."""
        if not prefix.header:
            return None
        text = self._primer_text(owner, prefix)
        job = self._primer_job(owner, text)
        if self._catalog.get(job.key) is None:
            await self._encode_batch([job], None, behind=frozenset(prefix.fact_ids))
            if job.key.kind == "primer" and job.key in self._catalog:
                self._catalog.drop_where(lambda chunk: _supersedes(job.key, chunk.key))
        chunk = self._catalog.get(job.key)
        return None if chunk is None else EncodedPrimer(chunk, text)

    def _primer_text(self, owner: Owner, prefix: Prefix) -> PrimerText:
        by_id = {fact.id: fact for fact in self._facts_of(owner)}
        lines = {fact_id: self.job_of(by_id[fact_id]).token_ids for fact_id in prefix.fact_ids if fact_id in by_id}
        return primer_text(self._header.token_ids, lines, self._max_model_len // 2)

    def _primer_job(self, owner: Owner, text: PrimerText) -> Job:
        if not text.spans:
            return self._header
        return Job(ChunkKey("primer", owner, digest_of(text.token_ids)), text.token_ids)

    async def _encode_batch(
        self, jobs: Sequence[Job], primer: EncodedPrimer | None, behind: frozenset[str] | None = None
    ) -> int:
        """Encode jobs behind a primer, check that all of each came, and commit; returns how many were placed."""
        seen = behind if behind is not None else (primer.chunk.behind if primer is not None else frozenset())
        held = [primer.chunk] if primer is not None else []
        chunks = [chunk for job in jobs if (chunk := self._reserve(job, held, seen)) is not None]
        if not chunks:
            return 0
        self._in_flight |= {chunk.stamp: chunk for chunk in chunks}
        done: list[bool] = [False] * len(chunks)
        try:
            with self._catalog.pinned(held):
                commands = [self._engine.encode(*_request(chunk, primer)) for chunk in chunks]
                outcomes = await asyncio.gather(*commands, return_exceptions=True)
                done = await self._engine.captured([(chunk.stamp, chunk.extents) for chunk in chunks])
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    logger.warning("an encode request failed: %s", type(outcome).__name__, exc_info=outcome)
        finally:
            for chunk, complete in zip(chunks, done, strict=True):
                self._settle(chunk, complete)
        return len(chunks)

    def _reserve(self, job: Job, held: Sequence[Chunk], behind: frozenset[str]) -> Chunk | None:
        length = len(job.token_ids) + sum(len(chunk.token_ids) for chunk in held) + SPARE_TOKENS + 1
        if not job.token_ids or length > self._max_model_len:
            self._tries[job.key] = MAX_TRIES
            self._count("failed")
            return None
        evict = job.key in self._asked or job.key.kind != "fact"
        hold = self._catalog.pin(held)  # eviction must spare the primer
        try:
            return self._catalog.reserve(job.key, job.token_ids, behind, evict=evict)
        finally:
            hold.release()

    def _settle(self, chunk: Chunk, complete: bool) -> None:
        del self._in_flight[chunk.stamp]
        self._asked.discard(chunk.key)
        if chunk.stamp in self._forgotten:
            self._forgotten.discard(chunk.stamp)
            self._catalog.release(chunk, wipe=True)
            self._count("dropped")
        elif complete:
            self._tries.pop(chunk.key, None)
            self._catalog.commit(chunk)
            self._count("stored")
        else:
            self._tries[chunk.key] += 1
            self._catalog.release(chunk)
            self._count("incomplete")

    async def _wipe(self) -> None:
        extents = self._catalog.unwiped
        if extents:
            await self._engine.wipe(extents)
            self._catalog.wiped(extents)

    def _drop(self, doomed: Callable[[Chunk], bool]) -> None:
        self._catalog.drop_where(doomed)
        self._forgotten |= {stamp for stamp, chunk in self._in_flight.items() if doomed(chunk)}

    def _count(self, result: EncodeResult) -> None:
        self.results[result] += 1
        self._on_result(result)

    def _mark(self, owner: Owner) -> None:
        self._dirty[owner] = None
        self._wake.set()


def _request(chunk: Chunk, primer: EncodedPrimer | None) -> tuple[tuple[int, ...], Command]:
    """The prompt and the command that encode a chunk: primer (injected), its own tokens, throw-away tokens."""
    injection = primer.injection_for(chunk.key.name) if primer is not None else None
    before = injection.token_ids if injection is not None else ()
    capture = Capture(chunk.stamp, len(before), chunk.extents)
    return (*before, *chunk.token_ids, *chunk.token_ids[:1] * SPARE_TOKENS), Command(injection, capture)


def _supersedes(new: ChunkKey, old: ChunkKey) -> bool:
    """An owner's new primer makes older ones useless."""
    return old.kind == new.kind and old.owner == new.owner and old != new


def digest_of(token_ids: Sequence[int]) -> str:
    """Names a text by its tokens."""
    return hashlib.sha256(b",".join(b"%d" % token for token in token_ids)).hexdigest()
