"""The encoder: turns facts into chunk KV in the background, inside the serving engine.

Knows: the queue and the order of work. Refuses to know: vLLM, which text is good to be encoded behind (recipe.py), how
a batch is carried out (batch.py), where rows are (catalog.py), how files are kept (kv_disk.py). What lies on the disk
is loaded instead. Runs on the event loop; the sink methods are quick and never raise.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from inferscale_server.backlog import Backlog, Sorting
from inferscale_server.batch import Batches, Listeners
from inferscale_server.behind import Behind, fitting, mark_of
from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS
from inferscale_server.job import EncodeEngine, Errand, Job, line_of, together
from inferscale_server.kv_disk import KvDisk
from inferscale_server.kv_shelf import ShelfKey
from inferscale_server.primers import Primers
from inferscale_server.recipe import Recipe
from inferscale_server.rosters import Rosters
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import Fact, Owner
from inferscale_server.vectors import NO_VECTORS, FactVectors
from inferscale_server.woken import work_when_woken
from inferscale_server.wording import Wording

BATCH = 8
"""Facts encoded at once: each request injects the whole prefix, which delays the step that a chat may be in."""
STARVED_BATCH = 3 * BATCH  # when each waits for seconds: most of a new user's facts are one request, their primer
MAX_LOOSE = 256
"""Headers and contexts that wait; the oldest is forgotten for a new one, until a chat wants it again."""


@dataclass(frozen=True, slots=True)
class FactSource:
    """Where the encoder reads an owner's facts, oldest first, their vectors (both from any thread), their wording.

    It asks for owners of facts only, whatever adapter their facts are read through.
    """

    facts: Callable[[Owner], Sequence[Fact]]
    vectors: Callable[[Owner], FactVectors] = lambda owner: NO_VECTORS
    wording: Wording = field(default_factory=Wording)
    count_of: Callable[[Owner], int] | None = None

    def facts_of(self, owner: Owner) -> Sequence[Fact]:
        """The owner's facts, oldest first."""
        return self.facts(owner.itself)

    def vectors_of(self, owner: Owner) -> FactVectors:
        """The vectors of the owner's facts."""
        return self.vectors(owner.itself)

    def count(self, owner: Owner) -> int:
        """How many facts the owner has; without `count_of`, by a look at all of them."""
        return len(self.facts_of(owner)) if self.count_of is None else self.count_of(owner.itself)


class Encoder:
    """Background encoding of all owners, one owner's batch at a time, in turns."""

    def __init__(
        self,
        catalog: Catalog,
        recipe: Recipe,
        engine: EncodeEngine,
        tokenize: LineTokenizer,
        header: Job,
        source: FactSource,
        max_model_len: int,
        listeners: Listeners | None = None,
        disk: KvDisk | None = None,
    ) -> None:
        """`header` is the default one, behind which facts are encoded."""
        catalog.keep = frozenset({header.key})
        self._catalog, self._recipe, self._tokenize, self._header = catalog, recipe, tokenize, header
        self._source, self._disk, self._max_model_len, self._starved = source, disk, max_model_len, engine.starved
        self._batches = Batches(catalog, engine, header.key, max_model_len, listeners or Listeners(), disk)
        self._rosters = Rosters(source.facts_of, source.count)
        self._primers = Primers(recipe, catalog, self._rosters, source.vectors_of, self._primer_on_disk)
        self._backlog = Backlog(self._sorting, self._waiting)
        self._loose: OrderedDict[ChunkKey, Job] = OrderedDict({header.key: header})  # headers and contexts
        self._dirty: OrderedDict[Owner, None] = OrderedDict()
        self._wake = asyncio.Event()
        self._wake.set()
        catalog.on_unwiped = self._wake.set
        self._busy = self._off = False
        self._at_work: tuple[Owner, ...] = ()  # whose batch is in flight
        self.reads: Callable[[Owner], bool] = lambda owner: True  # can anything be encoded for this owner now?
        self.results, self.tokens = self._batches.results, self._batches.tokens

    # What others tell the encoder

    def switch_off(self) -> None:
        """This engine cannot use KV: nothing waits for any, now or later. What lies on disk is still forgotten."""
        self._off = True
        self._loose.clear()
        self._dirty.clear()

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These facts exist now."""
        if self._off:
            return
        self._rosters.append(owner, facts)
        if self._backlog.idle(owner) and self._count(owner, self._given_up()[owner]) > len(facts):
            self._backlog.drop(owner)  # others have lost their rows since the line was worked off
        self._backlog.append(owner, [fact.id for fact in facts])
        self._mark(owner)

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """Drop the facts' KV and whatever was encoded behind them, at once; the latter is queued again."""
        gone = set(fact_ids)
        self._rosters.remove(owner, gone)
        staging, primer = self._primers.staging(owner), self._primers.of(owner)
        self._primers.forget(owner, gone)
        if staging and not self._primers.staging(owner):
            self._batches.spoil(owner)
        dropped = self._batches.drop(owner, lambda chunk: chunk.key.name in gone or not gone.isdisjoint(chunk.behind))
        if self._disk is not None:
            self._disk.forget_facts(owner, gone)
        self._batches.forget_tries(owner, lambda key: key.name in gone)
        others_lost = any(chunk.key.name not in gone for chunk in dropped)
        if staging or others_lost or primer != self._primers.of(owner):
            self._backlog.drop(owner)
            self._mark(owner)
        elif owner in self._at_work:  # what is in flight may be dropped; it still stands in the line
            self._mark(owner)

    def owner_forgotten(self, owner: Owner) -> None:
        """Drop all KV of an owner, at once."""
        self._rosters.drop(owner)
        self._primers.forget_owner(owner)
        self._dirty.pop(owner, None)
        self._backlog.drop(owner)
        for key in [key for key in self._loose if key.owner == owner]:
            del self._loose[key]
        self._batches.asked.pop(owner, None)
        self._batches.forget_tries(owner, lambda key: True)
        self._batches.drop(owner, lambda chunk: True)
        if self._disk is not None:
            self._disk.forget_owner(owner)
        self._wake.set()

    async def settled(self) -> None:
        """Return when no file holds KV of what was forgotten before this call."""
        if self._disk is not None:
            await self._disk.settled()

    def want(self, owner: Owner, jobs: Sequence[Job]) -> None:
        """A chat used these as text: encode them soon, even if others must be evicted for it."""
        self._want_header(owner)
        for job in [job for job in jobs if not self._batches.given_up(job.key)]:
            self._batches.want(job.key)
            if job.key.kind in ("header", "context"):
                self._loose.setdefault(job.key, job)
        while len(self._loose) > MAX_LOOSE:
            self._batches.wants_no_more(self._loose.popitem(last=False)[0])
        facts = [job.key.name for job in jobs if job.key.kind == "fact" and not self._batches.given_up(job.key)]
        if facts:
            self._backlog.hurry(owner, [*self._primers.of(owner).fact_ids, *facts])  # facts stand behind the primer
            self._dirty[owner] = None
        self._wake.set()

    def queued(self) -> int:
        """Chunks still to be encoded. Counted without a look at anybody's facts."""
        given_up = self._given_up()
        waiting = sum(self._count(owner, given_up[owner]) for owner in {*self._dirty, *self._at_work})
        return max(len(self._loose) + waiting - len(self._batches.in_flight), 0)

    def queued_of(self, owner: Owner) -> int:
        """Facts of one owner still without their KV, those being encoded right now among them."""
        busy = owner in self._dirty or owner in self._at_work
        return self._count(owner, self._given_up()[owner]) if busy else 0

    def _given_up(self) -> Counter[Owner]:
        """How many facts of each owner have no KV and get none."""
        return Counter(key.owner for key in self._batches.given_up_facts() if self._chunk_now(key) is None)

    def _count(self, owner: Owner, given_up: int) -> int:
        there = self._catalog.fact_count(owner, staged=self._primers.staging(owner))
        return max(self._source.count(owner) - there - given_up, 0)

    def running(self) -> int:
        """Chunks being encoded right now; at least 1 as long as the background is at work."""
        return max(len(self._batches.in_flight), int(self._busy))

    # The background task

    async def run(self) -> None:
        """Work until cancelled. A fault of the engine is logged, and what is left by it tried again after a pause."""
        await work_when_woken(self._wake, self.drain, self._is_left, "encoding")

    def _is_left(self) -> bool:
        unsaved = self._disk is not None and self._disk.waiting
        return bool(self._loose or self._dirty or self._catalog.unwiped or unsaved)

    async def drain(self) -> None:
        """Encode all that is queued: headers and contexts first, then a batch of each owner, who chats first."""
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

    async def wipe(self) -> None:
        """Zero the rows that were let go; they are free afterwards. Callers wait for each other."""
        await self._batches.wipe()

    async def _save_some(self) -> bool:
        return self._disk is not None and await self._disk.save_some()

    async def _encode_next_owner(self) -> None:
        owner = self._batches.first_asked(self._dirty) or next(iter(self._dirty))
        del self._dirty[owner]
        if not self.reads(owner):
            self._batches.asked.pop(owner, None)
            return
        self._at_work = (owner,)
        try:
            if await self._encode_owner(owner):
                self._dirty[owner] = None
        except Exception:
            self._dirty[owner] = None  # the engine's fault must not make the background forget who waits
            self._batches.asked.pop(owner, None)  # nor stand before all others for ever
            raise
        finally:
            self._at_work = ()

    async def _encode_loose(self) -> None:
        key, job = next(iter(self._loose.items()))
        if key.kind == "context":
            await self._rosters.prepare(key.owner)
            await self._primers.choose(key.owner)
        if key not in self._loose:
            return  # its owner was forgotten meanwhile
        if self._catalog.staged(key) is not None or not self.reads(key.owner) or self._batches.given_up(key):
            del self._loose[key]  # it is there and serves soon, or nothing will come of it
            self._batches.wants_no_more(key)
            return
        if key.kind == "header":
            self._catalog.make_room_among_headers(len(job.token_ids))
        errand = self._loose_errand(job)
        # It waits until this ends: were a header lost by a fault of the engine, nothing would be served as KV.
        if not await self._batches.load([errand]):
            await self._batches.encode([errand])
        if key not in self._catalog and self._batches.tries[key] > 0 and key in self._loose:
            self._loose.move_to_end(key)
        else:
            self._loose.pop(key, None)

    async def _encode_owner(self, owner: Owner) -> bool:
        """One batch: loaded, if any of it lies on the disk, else encoded. Is there more to do?"""
        await self._rosters.prepare(owner)
        if await self._primers.choose(owner):
            self._backlog.drop(owner)
        vectors, most = NO_VECTORS, STARVED_BATCH if self._starved() else BATCH
        if self._recipe.needs_vectors:
            await self._backlog.prepare(owner)
            ids = [fact.id for fact in self._backlog.first(owner, most)]
            vectors = await asyncio.to_thread(self._vectors_for, owner, ids)
        errands = await self._next_errands(owner, vectors, most)
        if self._primers.staging(owner) and not self._replaces(errands):
            return self._swap(owner)
        if await self._batches.load(errands):
            return True
        errands = await self._next_errands(
            owner, vectors, most
        )  # facts may have been forgotten during a load that failed
        if not errands:
            return False
        if await self._batches.encode(errands):
            return True
        # Too few rows for two generations: the old one, as far as it is not replaced, goes back to text.
        return self._primers.staging(owner) and self._swap(owner)

    def _vectors_for(self, owner: Owner, fact_ids: Sequence[str]) -> FactVectors:
        vectors = self._source.vectors_of(owner)
        self._recipe.look_up(fact_ids, vectors)
        return vectors

    def _replaces(self, errands: Sequence[Errand]) -> bool:
        """Is any of these still needed before the new generation can serve: in the primer, or served by the old one?"""
        return any(
            errand.job.key in self._catalog or errand.job.key.name in self._primers.of(errand.job.key.owner).fact_ids
            for errand in errands
        )

    def _swap(self, owner: Owner) -> bool:
        self._primers.swap(owner)
        self._backlog.drop(owner)
        return True

    def _primer_on_disk(self, owner: Owner) -> tuple[str, ...]:
        facts = self._recipe.primer_facts
        return self._disk.primer_of(owner, facts) if self._disk is not None and facts else ()

    # What waits, in which order, behind what

    def _sorting(self, owner: Owner) -> Sorting:
        old: Set[str] = frozenset()
        done = self._catalog.facts_of(owner)
        if self._primers.staging(owner):
            old, done = done, self._catalog.staged_facts_of(owner)
        given_up = {key.name for key in self._batches.given_up_facts() if key.owner == owner}
        wanted = {key.name for key in self._batches.asked.get(owner, ())}
        return Sorting(self._rosters.of(owner).ids, self._primers.of(owner).fact_ids, done | given_up, old, wanted)

    def _waiting(self, owner: Owner, fact_id: str) -> Fact | None:
        key = ChunkKey("fact", owner, fact_id)
        waits = self._chunk_now(key) is None and not self._batches.given_up(key)
        return self._rosters.of(owner).get(fact_id) if waits else None

    def _chunk_now(self, key: ChunkKey) -> Chunk | None:
        """The chunk of the generation that is being encoded."""
        return self._catalog.staged(key) if self._primers.staging(key.owner) else self._catalog.peek(key)

    async def _next_errands(self, owner: Owner, vectors: FactVectors, most: int) -> list[Errand]:
        await self._rosters.prepare(owner)
        await self._backlog.prepare(owner)
        primer, roster = self._primers.of(owner), self._rosters.of(owner)
        staged, hurry = self._primers.staging(owner), bool(self._batches.asked.get(owner))
        waiting = []
        for fact in self._backlog.first(owner, most):
            job = self.job_of(fact, owner)
            ahead = len(primer.before(fact.id)) if self._recipe.nearest_last else None
            chosen = self._stored_behind(job, primer.before(fact.id)) or self._recipe.behind(
                roster, fact, primer, vectors
            )
            behind = self._behind(job, chosen, ahead)
            # What is asked for stands behind the primer, which would be computed for each again if it had no rows.
            urgent = self._batches.wants(job.key) or (hurry and fact.id in primer.fact_ids)
            waiting.append(Errand(job, behind, staged, urgent))
        return together(waiting)

    def _stored_behind(self, job: Job, primer: tuple[str, ...]) -> tuple[str, ...]:
        """What a fact's file was encoded behind, while all of it still stands: neighbours are those of that time."""
        if self._disk is None or not self._recipe.needs_vectors:
            return ()
        owner, name = job.key.owner, job.key.name
        stored = self._disk.shelf.get(ShelfKey(self._catalog.fingerprint_of(owner), owner.digest(), "fact", name))
        seen = () if stored is None else stored.identity.behind
        ids, roster = tuple(one.fact_id for one in seen), self._rosters.of(owner)
        stands = all(
            one.fact_id in roster and self.job_of(roster.fact(one.fact_id), owner).mark == one.mark for one in seen
        )
        return ids if stands and ids[: len(primer)] == primer else ()

    def _loose_errand(self, job: Job) -> Errand:
        if job.key.kind == "header":
            return Errand(job)
        owner = job.key.owner
        behind = self._behind(job, self._primers.of(owner).fact_ids)
        return Errand(job, behind, self._primers.staging(owner))

    def job_of(self, fact: Fact, owner: Owner | None = None) -> Job:
        """The job that encodes one fact; `owner` names the adapter through which it is read, if any."""
        line = line_of(fact, self._source.wording)
        return Job(ChunkKey("fact", owner or fact.owner, fact.id), self._tokenize(line, fact.owner), mark_of(line))

    def _behind(self, job: Job, fact_ids: Sequence[str], ahead: int | None = None) -> Behind:
        """At most half of the model's context, and no more than the job itself leaves of it."""
        if not self._recipe.header:
            return Behind()
        owner, roster = job.key.owner, self._rosters.of(job.key.owner)
        room_tokens = min(self._max_model_len // 2, self._max_model_len - 1 - len(job.token_ids) - SPARE_TOKENS)
        if ahead is not None:
            ahead = sum(fact_id in roster for fact_id in fact_ids[:ahead])
        lines = [self.job_of(roster.fact(fact_id), owner).line for fact_id in fact_ids if fact_id in roster]
        return fitting(self._header.token_ids, lines, room_tokens, ahead)

    def _want_header(self, owner: Owner) -> None:
        """An adapter's facts are encoded behind the default header as it reads it."""
        key = self._header.key.read_by(owner)
        if owner.adapter and key not in self._catalog and not self._batches.given_up(key):
            self._loose.setdefault(key, replace(self._header, key=key))

    def _mark(self, owner: Owner) -> None:
        if not self._off:
            self._want_header(owner)
            self._dirty[owner] = None
            self._wake.set()
