"""The encoder: turns facts into chunk KV in the background, inside the serving engine.

Knows: the queue, the order of work, how often to try. Refuses to know: vLLM (behind EncodeEngine), which text is good
to be encoded behind (recipe.py), where rows are (catalog.py), how files are kept (kv_disk.py). What lies on the disk is
loaded instead. Runs on the event loop; the sink methods are quick and never raise.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Literal

from inferscale_server.backlog import Backlog
from inferscale_server.behind import Behind, EncodedPrimer, mark_of, primer_text
from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS
from inferscale_server.job import EncodeEngine, EncodeResult, Job, line_of, primer_job, request_for, supersedes
from inferscale_server.kv_codec import KvIdentity, Seen
from inferscale_server.kv_disk import Filed, KvDisk
from inferscale_server.recipe import Prefix, Recipe, seen_behind
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import Fact, Owner

logger = logging.getLogger(__name__)

BATCH = 8
"""Encode requests in flight at once: each injects the whole prefix, which delays the step that a chat may be in."""
MAX_TRIES = 3
MAX_LOOSE = 256
"""Headers and contexts that wait; the oldest is forgotten for a new one, until a chat wants it again."""
WIPE_EXTENTS = 32
"""Extents zeroed by one command to the workers."""


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
        disk: KvDisk | None = None,
    ) -> None:
        """`header` is the default one, behind which facts are encoded; `facts_of` gives an owner's, oldest first."""
        catalog.keep = frozenset({header.key})
        self._catalog, self._recipe, self._engine = catalog, recipe, engine
        self._tokenize, self._header, self._facts_of = tokenize, header, facts_of
        self._max_model_len, self._on_result, self._disk = max_model_len, on_result, disk
        self._prefixes: dict[Owner, Prefix] = {}
        self._backlog = Backlog(self._order, self._waits)
        self._loose: OrderedDict[ChunkKey, Job] = OrderedDict({header.key: header})  # headers and contexts
        self._dirty: OrderedDict[Owner, None] = OrderedDict()
        self._asked: set[ChunkKey] = set()  # wanted by a chat: worth evicting others for
        self._tries: Counter[ChunkKey] = Counter()
        self._in_flight: dict[int, Chunk] = {}
        self._placing: set[Owner] = set()  # whose jobs wait for rows; leaves it when something is forgotten meanwhile
        self._forgotten: set[int] = set()  # stamps whose text was forgotten while being encoded
        self._wiping, self._wake = asyncio.Lock(), asyncio.Event()
        self._wake.set()
        catalog.on_unwiped = self._wake.set
        self._busy = False
        self._at_work: tuple[Owner, ...] = ()  # whose batch is in flight
        self.results: Counter[str] = Counter()

    # What others tell the encoder

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These facts exist now."""
        self._backlog.append(owner, facts)
        self._mark(owner)

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """Drop the facts' KV and whatever was encoded behind them, at once; the latter is queued again."""
        gone = set(fact_ids)
        self._placing.discard(owner)
        prefix = self._prefixes.get(owner)
        if prefix is not None and gone & set(prefix.fact_ids):
            del self._prefixes[owner]
        self._drop(owner, lambda chunk: chunk.key.name in gone or bool(gone & chunk.behind))
        if self._disk is not None:
            self._disk.forget_facts(owner, gone)
        for key in [key for key in self._tries if key.owner == owner and key.name in gone]:
            del self._tries[key]
        self._backlog.drop(owner)
        self._mark(owner)

    def owner_forgotten(self, owner: Owner) -> None:
        """Drop all KV of an owner, at once."""
        self._placing.discard(owner)
        self._prefixes.pop(owner, None)
        self._dirty.pop(owner, None)
        self._backlog.drop(owner)
        self._asked = {key for key in self._asked if key.owner != owner}
        for book in (self._loose, self._tries):
            for key in [key for key in book if key.owner == owner]:
                del book[key]
        self._drop(owner, lambda chunk: True)
        if self._disk is not None:
            self._disk.forget_owner(owner)
        self._wake.set()

    async def settled(self) -> None:
        """Return when no file holds KV of what was forgotten before this call."""
        if self._disk is not None:
            await self._disk.settled()

    def want(self, owner: Owner, jobs: Sequence[Job]) -> None:
        """A chat used these as text: encode them soon, even if others must be evicted for it."""
        for job in [job for job in jobs if self._tries[job.key] < MAX_TRIES]:
            self._asked.add(job.key)
            if job.key.kind in ("header", "context"):
                self._loose.setdefault(job.key, job)
        while len(self._loose) > MAX_LOOSE:
            self._asked.discard(self._loose.popitem(last=False)[0])
        if any(job.key.kind == "fact" for job in jobs):
            self._backlog.drop(owner)  # what was asked for comes first
            self._dirty[owner] = None
        self._wake.set()

    def queued(self) -> int:
        """Chunks still to be encoded."""
        waiting = sum(self._backlog.count(owner) for owner in {*self._dirty, *self._at_work})
        return max(len(self._loose) + waiting - len(self._in_flight), 0)

    def queued_of(self, owner: Owner) -> int:
        """Facts of one owner still without their KV, those being encoded right now among them."""
        return self._backlog.count(owner) if owner in self._dirty or owner in self._at_work else 0

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
            await self.wipe()
            if self._loose:
                await self._encode_loose()
            else:
                await self._encode_next_owner()
            await self._save_some()
        while await self._save_some():
            pass
        await self.wipe()
        await self.settled()

    async def _save_some(self) -> bool:
        return self._disk is not None and await self._disk.save_some()

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
        behind = self._behind(owner, prefix)
        primer = None
        if not self._finds(job, behind):
            primer = await self._primer(owner, behind, prefix)
        if self._loose.pop(job.key, None) is None:
            return  # its owner was forgotten while the prefix was being encoded
        if job.key.kind == "header":
            self._catalog.make_room_among_headers(len(job.token_ids))
        if not await self._load([job], behind):
            if prefix.header and primer is None:
                self._tries[job.key] += 1
            else:
                await self._encode_batch([job], behind, primer)
        if job.key not in self._catalog and 0 < self._tries[job.key] < MAX_TRIES:
            self._loose[job.key] = job

    async def _encode_owner(self, owner: Owner) -> None:
        """One batch: loaded, if any of it lies on the disk, else encoded."""
        prefix = self._choose_prefix(owner)
        if not (jobs := self._next_jobs(owner)):
            return
        behind = self._behind(owner, prefix)
        if await self._load(jobs, behind):
            self._dirty[owner] = None
            return
        if not any(job.key in self._asked or len(job.token_ids) <= self._catalog.rows_coming for job in jobs):
            return  # a primer would evict facts of others, and nothing could be encoded behind it
        primer = await self._primer(owner, behind, prefix)
        if self._prefixes.get(owner) != prefix:
            return  # something that it holds was forgotten meanwhile, and the owner is queued again
        if prefix.header and primer is None:
            if 0 < self._tries[primer_job(owner, behind, self._header).key] < MAX_TRIES:
                self._dirty[owner] = None  # one without room, or tried too often, leaves the facts as text
            return
        jobs = self._next_jobs(owner)  # anew: facts may have been forgotten while the prefix was being encoded
        if await self._encode_batch(jobs, behind, primer):
            self._dirty[owner] = None

    def _choose_prefix(self, owner: Owner) -> Prefix:
        current = self._prefixes.get(owner) or self._prefix_on_disk(owner)
        prefix = self._recipe.prefix([fact.id for fact in self._facts_of(owner)], current)
        if prefix != self._prefixes.get(owner):
            self._backlog.drop(owner)
        self._prefixes[owner] = prefix
        return prefix

    def _prefix_on_disk(self, owner: Owner) -> Prefix | None:
        """What the chunks of an earlier start were encoded behind: another choice would encode them all again."""
        fact_ids = self._disk.primer_of(owner) if self._disk is not None else ()
        return Prefix(header=True, fact_ids=fact_ids) if fact_ids else None

    def _order(self, owner: Owner) -> list[Fact]:
        """Facts that a chat asked for, then those without a chunk, then those with one behind an older prefix."""
        keys = [(fact, ChunkKey("fact", owner, fact.id)) for fact in self._facts_of(owner) if self._waits(fact)]
        keys.sort(key=lambda of: (of[1] not in self._asked, self._catalog.peek(of[1]) is not None))
        return [fact for fact, _ in keys]

    def _waits(self, fact: Fact) -> bool:
        key = ChunkKey("fact", fact.owner, fact.id)
        if self._tries[key] >= MAX_TRIES:
            return False
        chunk, prefix = self._catalog.peek(key), self._prefixes.get(fact.owner)
        return chunk is None or (prefix is not None and chunk.behind != seen_behind(prefix))

    def _next_jobs(self, owner: Owner) -> list[Job]:
        return [self.job_of(fact) for fact in self._backlog.first(owner, BATCH)]

    def job_of(self, fact: Fact) -> Job:
        """The job that encodes one fact."""
        line = line_of(fact)
        return Job(ChunkKey("fact", fact.owner, fact.id), self._tokenize(line), mark_of(line))

    def _behind(self, owner: Owner, prefix: Prefix) -> Behind:
        """The prefix as text: the default header, then the facts' lines."""
        if not prefix.header:
            return Behind()
        by_id = {fact.id: fact for fact in self._facts_of(owner)}
        jobs = {fact_id: self.job_of(by_id[fact_id]) for fact_id in prefix.fact_ids if fact_id in by_id}
        lines = {fact_id: job.token_ids for fact_id, job in jobs.items()}
        text = primer_text(self._header.token_ids, lines, self._max_model_len // 2)
        return Behind(text, tuple(Seen(fact_id, job.mark) for fact_id, job in jobs.items()))

    async def _primer(self, owner: Owner, behind: Behind, prefix: Prefix) -> EncodedPrimer | None:
        """Header and primer facts, encoded now unless they are there; None without a prefix or without success."""
        if not prefix.header:
            return None
        job, own = primer_job(owner, behind, self._header), Behind(seen=behind.seen)
        if self._catalog.get(job.key) is None:
            if not await self._load([job], own):
                await self._encode_batch([job], own, None)
            if job.key.kind == "primer" and job.key in self._catalog:
                self._catalog.drop_where(owner, lambda chunk: supersedes(job.key, chunk.key))
        chunk = self._catalog.get(job.key)
        return None if chunk is None else EncodedPrimer(chunk, behind.text)

    # A batch

    def _finds(self, job: Job, behind: Behind) -> bool:
        return self._disk is not None and self._disk.finds(self._identity(job, behind))

    def _identity(self, job: Job, behind: Behind) -> KvIdentity:
        return behind.identity(self._catalog.fingerprint, job.key, job.mark, job.token_ids)

    async def _load(self, jobs: Sequence[Job], behind: Behind) -> int:
        """Load those that lie on the disk, encoded behind the very same; returns how many are there now."""
        found = [job for job in jobs if self._finds(job, behind)]
        if self._disk is None or not found:
            return 0
        placed = await self._place(found, behind, ())
        done = [False] * len(placed)
        try:
            done = await self._disk.load(placed)
        finally:
            for filed, loaded in zip(placed, done, strict=True):
                self._settle(filed, "loaded" if loaded else None)
        return sum(done)

    async def _encode_batch(self, jobs: Sequence[Job], behind: Behind, primer: EncodedPrimer | None) -> int:
        """Encode jobs behind a primer, check that all of each came, and commit; returns how many were placed."""
        held = [primer.chunk] if primer is not None else []
        placed = await self._place(jobs, behind, held)
        if not placed:
            return 0
        done = [False] * len(placed)
        try:
            with self._catalog.pinned(held):
                commands = [self._engine.encode(*request_for(filed.chunk, primer)) for filed in placed]
                outcomes = await asyncio.gather(*commands, return_exceptions=True)
                done = await self._engine.captured([(filed.chunk.stamp, filed.chunk.extents) for filed in placed])
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    logger.warning("an encode request failed: %s", type(outcome).__name__, exc_info=outcome)
        finally:
            for filed, complete in zip(placed, done, strict=True):
                self._settle(filed, "stored" if complete else "incomplete")
        return len(placed)

    async def _place(self, jobs: Sequence[Job], behind: Behind, held: Sequence[Chunk]) -> list[Filed]:
        """Rows for each job, as far as there are any; evicts for what a chat asked for, never the held chunks."""
        fitting = [job for job in jobs if self._fits(job, held)]
        with self._catalog.pinned(held):
            rows = 0
            for job in fitting:
                if job.key in self._asked or job.key.kind != "fact":
                    rows += len(job.token_ids)
                    self._catalog.make_room(rows)
            self._placing = {job.key.owner for job in jobs}
            await self.wipe()
        fitting = [job for job in fitting if job.key.owner in self._placing]
        chunks = [(job, self._catalog.reserve(job.key, job.token_ids, behind.fact_ids)) for job in fitting]
        placed = [Filed(chunk, self._identity(job, behind)) for job, chunk in chunks if chunk is not None]
        self._in_flight |= {filed.chunk.stamp: filed.chunk for filed in placed}
        return placed

    def _fits(self, job: Job, held: Sequence[Chunk]) -> bool:
        length = len(job.token_ids) + sum(len(chunk.token_ids) for chunk in held) + SPARE_TOKENS + 1
        if job.token_ids and length <= self._max_model_len:
            return True
        self._tries[job.key] = MAX_TRIES
        self._count("failed")
        return False

    def _settle(self, filed: Filed, result: Literal["stored", "loaded", "incomplete"] | None) -> None:
        """None: the file did not check out, and the encoder turns to the text."""
        chunk = filed.chunk
        del self._in_flight[chunk.stamp]
        if result is not None:
            self._asked.discard(chunk.key)
        if chunk.stamp in self._forgotten:
            self._forgotten.discard(chunk.stamp)
            self._catalog.release(chunk)
            if result is not None:
                self._count("dropped")
        elif result in ("stored", "loaded"):
            self._tries.pop(chunk.key, None)
            self._catalog.commit(chunk)
            if self._disk is not None and result == "stored":
                self._disk.put(chunk, filed.identity)
            self._count(result)
        else:
            self._catalog.release(chunk)
            if result is not None:
                self._tries[chunk.key] += 1
                self._count(result)

    async def wipe(self) -> None:
        """Zero the rows that were let go; they are free afterwards. Callers wait for each other."""
        async with self._wiping:
            while extents := self._catalog.unwiped[:WIPE_EXTENTS]:
                await self._engine.wipe(extents)
                self._catalog.wiped(extents)

    def _drop(self, owner: Owner, doomed: Callable[[Chunk], bool]) -> None:
        self._catalog.drop_where(owner, doomed)
        in_flight = self._in_flight.items()
        self._forgotten |= {stamp for stamp, chunk in in_flight if chunk.key.owner == owner and doomed(chunk)}

    def _count(self, result: EncodeResult) -> None:
        self.results[result] += 1
        self._on_result(result)

    def _mark(self, owner: Owner) -> None:
        self._dirty[owner] = None
        self._wake.set()
