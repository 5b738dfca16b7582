"""The memory service: facts, vectors and an embedder joined behind an async interface.

Knows: which thread does what, and in which order a write and a delete become visible. Refuses to know: HTTP, vLLM, KV.

Threads: one does all writes of the fact store and all changes of index and read cache, so they never interleave; one
walks pages; one embeds; one searches where that takes long (searches.py); the event loop reads what is in memory.
A write that has begun is finished, whatever becomes of the request that asked for it. A fact whose time has come is
invisible at once, because everything that reads looks at the clock; `maintain` frees it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from inferscale_server.agreement import agree
from inferscale_server.deletions import Deletions
from inferscale_server.embed import Embedder
from inferscale_server.embedding import EmbeddingThread
from inferscale_server.errors import Conflict, NotFound, StorageFull, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.filters import Filter
from inferscale_server.forget import Doomed, forget_expired, forget_facts, forget_owner
from inferscale_server.gate import Gate
from inferscale_server.heap import Intake
from inferscale_server.index import Floats, VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.limits import DEFAULT_PAGE, MAX_FACTS_PER_OWNER
from inferscale_server.nearest import Question, end_of
from inferscale_server.reindex import catch_up, prepare, rebuild, switch
from inferscale_server.remember import Remembered, remember
from inferscale_server.revise import Revised, revise
from inferscale_server.searches import Searches, Sought
from inferscale_server.sink import EncodeSink
from inferscale_server.trigrams import TrigramIndex
from inferscale_server.turns import Turns
from inferscale_server.types import (
    AddOutcome,
    Fact,
    FactChange,
    FactDraft,
    FactHistory,
    FactPage,
    Hit,
    IdempotencyKey,
    Owner,
    Successor,
    UserPage,
)
from inferscale_server.vectors import FactVectors, means_of
from inferscale_server.wipes import Wipes

T = TypeVar("T")

EXPORT_PAGE = 500
FORGOTTEN_AT_ONCE = 1_000
"""Of many matching facts so many go in one commit: other writes have their turn in between."""


class MemoryService:
    """Remember, find and forget facts. Belongs to one event loop; owns the store, which `aclose` closes."""

    def __init__(self, store: FactStore, index: VectorIndex, embedder: Embedder, sink: EncodeSink) -> None:
        """Nothing is read before `start`; `index` must be empty."""
        self._store, self._index, self._sink = store, index, sink
        self._embed = EmbeddingThread(embedder)
        self._trigrams = TrigramIndex(embedder.represents)
        self._known = KnownFacts(self._trigrams)
        self._searches = Searches(self._known, store.now)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="inferscale-facts")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="inferscale-pages")
        self._gate, self._turns = Gate(), Turns()
        self._deletions = Deletions(self._forget_all)
        self._writes: set[asyncio.Task[Any]] = set()
        self._intake = Intake()
        self._wipes = Wipes()
        self._closing = self._closed = False

    async def start(self) -> None:
        """Claim the embedder, rebuild index and read cache. Raises ConfigError for another embedder than before."""
        await self._run(self._writer, self._load)

    async def add(
        self,
        owner: Owner,
        drafts: Sequence[FactDraft],
        idempotency: IdempotencyKey | None = None,
        successors: Sequence[Successor] = (),
        unless_wiped_since: int | None = None,
    ) -> tuple[AddOutcome, ...]:
        """Store facts durably and make them findable, all or none; adds of one owner keep their order.

        An ImportedFact keeps id and times; an id that is taken or not one of ours is replaced. `successors`: see
        FactStore.add. A repeat with the same key returns what the first one did, also after a restart. Raises Conflict
        for a key with another body or when a wipe since concerns these facts, StorageFull, Unavailable: nothing stored.
        """
        async with self._turn(owner):
            since = self.wipes(owner) if unless_wiped_since is None else unless_wiped_since
            if self._wipes.concern(owner, since, drafts, self._store.now()):
                raise Conflict("the user's memories were deleted meanwhile", code="memories_deleted")
            if idempotency is not None:
                earlier = await self._run(self._writer, self._store.earlier, owner, idempotency, drafts)
                if earlier is not None:
                    return earlier
            vectors = await self._embed.facts([draft.text for draft in drafts])
            return await self._finish(self._remember(owner, drafts, vectors, idempotency, successors))

    async def update(self, owner: Owner, fact_id: str, change: FactChange) -> Fact:
        """Change what a fact says; what the change does not name stays. A new text or time makes its KV stale.

        Raises NotFound like `get`, Conflict for a text that another fact has, TooLarge, StorageFull or Unavailable.
        """
        async with self._turn(owner):
            fact = await self.get(owner, fact_id)
            new_text = change.text is not None and change.text != fact.text
            vectors = await self._embed.facts([change.text] if new_text and change.text is not None else [])
            return await self._finish(self._revise(owner, fact_id, change, vectors[0] if new_text else None))

    async def search(
        self, owner: Owner, query: str, k: int, min_score: float | None = None, where: Filter | None = None
    ) -> tuple[Hit, ...]:
        """The owner's `k` facts nearest to the query that match, best first."""
        return await self.find(owner, await self.embed_query(owner, query), k, min_score, where, query)

    async def find(
        self,
        owner: Owner,
        vector: Floats,
        k: int,
        min_score: float | None = None,
        where: Filter | None = None,
        words: str = "",
    ) -> tuple[Hit, ...]:
        """Like `search` for a float32 [dimension] vector, from memory alone; a long search runs in a thread.

        `words` are the query's own: facts that the embedder does not know are found by them.
        """
        sought = Sought(owner, Question(vector, end_of(words)), k, min_score, where)
        return await self._searches.find(self._index, self._trigrams, sought)

    async def embed_query(self, owner: Owner, text: str) -> Floats:
        """Float32 [dimension] of the text's end, cached for its owner. Search with it before the next await."""
        return await self._embed.query(owner, end_of(text))

    async def page(
        self, owner: Owner, limit: int = DEFAULT_PAGE, cursor: str | None = None, where: Filter | None = None
    ) -> FactPage:
        """A page of the owner's facts that match, oldest first. Raises InvalidRequest for a bad limit or cursor."""
        return await self._run(self._reader, self._store.page, owner, limit, cursor, where)

    async def export(self, owner: Owner) -> AsyncIterator[Fact]:
        """All facts of the owner, oldest first; those added meanwhile too. Reads a page at a time."""
        cursor: str | None = None
        while True:
            page = await self.page(owner, EXPORT_PAGE, cursor)
            for fact in page.facts:
                yield fact
            cursor = page.next_cursor
            if cursor is None:
                return

    async def users(
        self, tenant: str, limit: int = DEFAULT_PAGE, cursor: str | None = None, fact_id: str | None = None
    ) -> UserPage:
        """One page of the tenant's users who have facts, or this one, by name. Raises InvalidRequest like `page`."""
        return await self._run(self._reader, self._store.users, tenant, limit, cursor, fact_id)

    def peek(self, owner: Owner, fact_id: str) -> Fact | None:
        """The fact as it is now, from memory; one that has expired until it is swept."""
        return self._known.get(owner, fact_id)

    async def get(self, owner: Owner, fact_id: str) -> Fact:
        """One fact. Raises NotFound, also for another owner's fact and for one that has expired."""
        fact = self._known.get(owner, fact_id)
        if fact is None or fact.expired(self._store.now()):
            raise NotFound(f"no fact {fact_id!r}", param="id")
        return fact

    async def history(self, owner: Owner, fact_id: str) -> FactHistory:
        """All events of a fact, oldest first; of one that is gone, that it existed. Raises NotFound like `get`."""
        events = await self._run(self._reader, self._store.history, owner, fact_id)
        if not events:
            raise NotFound(f"no fact {fact_id!r}", param="id")
        return events

    async def delete(self, owner: Owner, fact_id: str) -> None:
        """Forget one fact; nothing of it can be recalled when this returns. Raises NotFound like `get`."""
        if not await self._finish(self._forget(owner, fact_id)):
            raise NotFound(f"no fact {fact_id!r}", param="id")

    async def delete_owner(self, owner: Owner) -> int:
        """Forget all facts of an owner, also those of adds that came before this call; returns how many."""
        async with self._turn(owner):
            self._wipes.note(owner)
            return await self._finish(self._forget_owner(owner))

    async def delete_matching(self, owner: Owner, where: Filter) -> int:
        """Like `delete_owner`, for those that match, in slices: a call that was broken off has deleted some of them."""
        async with self._turn(owner):
            self._wipes.note(owner, where)
            doomed = await self._searches.matching(owner, where)
            return await self._finish(self._forget_many(owner, doomed))

    def wipes(self, owner: Owner) -> int:
        """Grows when many of the owner's facts are deleted at once: what was said before must not be stored after."""
        return self._wipes.number(owner)

    async def maintain(self, now: float | None = None) -> int:
        """Free what has expired until `now` (Unix seconds), also old idempotency keys. Returns how many facts."""
        number = await self._finish(self._expire(self._store.now() if now is None else now))
        await self._run(self._writer, self._store.drop_old_outcomes, self._store.now())
        return number

    @property
    def embedder(self) -> Embedder:
        """The one in use now."""
        return self._embed.embedder

    async def reindex(self, embedder: Embedder, tell: Callable[[int, int], None]) -> int:
        """Embed all facts with another embedder, then use that one; returns how many facts there are.

        The old one goes on; adds and updates wait for the switch at the end. `tell` hears from another thread how many
        facts are done of how many. Raises Unavailable or StorageFull with the old one in use.
        """

        def tell_while_open(done: int, of: int) -> None:
            if self._closing:
                raise Unavailable("the server is shutting down")
            tell(done, of)

        await self._finish(asyncio.to_thread(prepare, self._store, embedder, tell_while_open))
        return await self._finish(self._switch(embedder))

    async def _switch(self, embedder: Embedder) -> int:
        async with self._gate.closed():
            rebuilt = await self._run(self._writer, rebuild, self._store, embedder, self._index.empty())
            number = await self._run(self._writer, switch, self._store, embedder)
            self._index, self._trigrams = rebuilt.index, TrigramIndex(embedder.represents)
            self._embed.replace(embedder)
            await self._run(self._writer, catch_up, self._known, rebuilt, self._trigrams)
        return number

    async def between_writes(self, work: Callable[[FactStore], T]) -> T:
        """Run `work` in the writer's thread: writes wait for it."""
        return await self._finish(self._run(self._writer, work, self._store))

    def epoch(self, owner: Owner) -> int:
        """Grows with every delete or rewriting of the owner's facts, also over restarts; what is older is stale."""
        return self._known.epoch(owner)

    def facts(self, owner: Owner) -> tuple[Fact, ...]:
        """All facts of the owner, oldest first, from memory."""
        accept = self._searches.accept(owner, None)
        return tuple(fact for fact in self._known.of(owner) if accept is None or accept(fact.id))

    def vectors(self, owner: Owner) -> FactVectors:
        """The owner's facts' vectors as they are searched now. From any thread."""
        return self._index.vectors(owner)

    def owners(self) -> tuple[Owner, ...]:
        """All owners that have facts."""
        return self._known.owners()

    def start_building(self) -> None:
        """Search graphs may take a core from now on: before, they would disturb what is measured at a start."""
        self._index.start_building()

    def index_bytes(self, owner: Owner) -> int:
        """Bytes of the owner's vectors in the index."""
        return self._index.bytes(owner)

    async def embed_texts(self, texts: Sequence[str]) -> Floats:
        """Float32 [texts, dimension], unit rows; of a long text the mean. Raises Unavailable when embedding fails."""
        return means_of(await self._embed.facts(texts))

    def count(self, owner: Owner) -> int:
        """How many facts the owner has."""
        return self._known.count(owner) - len(self._known.overdue(owner, self._store.now()))

    async def disagreeing(self) -> int:
        """How many owners' facts are not the same in store, index and read cache. Writes wait for one owner's look."""
        owners = {*self._known.owners(), *await self._run(self._reader, self._store.owners)}
        looks = [await self._run(self._writer, agree, self._store, self._index, self._known, one) for one in owners]
        return looks.count(False)

    async def stored_bytes(self, owner: Owner) -> int:
        """UTF-8 bytes of the owner's texts and metadata, as the quota counts them."""
        return await self._run(self._reader, self._store.bytes_of, owner)

    async def aclose(self) -> None:
        """Finish the writes that have begun, then close threads and store. Later calls raise Unavailable."""
        self._closing = True
        while self._writes:
            await asyncio.gather(*self._writes, return_exceptions=True)
        self._closed = True
        for executor in (self._writer, self._reader):
            await asyncio.to_thread(executor.shutdown)
        await self._searches.aclose()
        await self._embed.aclose()
        self._store.close()

    def _load(self) -> None:
        self._store.claim_embedder(self.embedder.name, self.embedder.dimension)
        self._known.set_epochs(self._store.epochs())
        for vectors in self._store.vectors():
            self._known.add(self._store.oldest(vectors.owner, MAX_FACTS_PER_OWNER))
            self._index.add(vectors.owner, vectors.fact_ids, vectors.matrix)

    async def _remember(
        self, owner: Owner, drafts: Sequence[FactDraft], vectors: Sequence[Floats], *how: object
    ) -> tuple[AddOutcome, ...]:
        await self._expire_overdue(owner)
        stores = (self._store, self._index, self._known)
        remembered: Remembered = await self._run(self._writer, remember, *stores, owner, drafts, vectors, *how)
        self._intake.took(len(remembered.facts))
        await self._tell(owner, remembered.gone, remembered.facts)
        return remembered.outcomes

    async def _revise(self, owner: Owner, fact_id: str, change: FactChange, vectors: Floats | None) -> Fact:
        await self._expire_overdue(owner)
        stores = (self._store, self._index, self._known)
        revised: Revised = await self._run(self._writer, revise, *stores, owner, fact_id, change, vectors)
        if revised.stale:
            await self._tell(owner, (fact_id,), (revised.fact,))
        return revised.fact

    async def _expire(self, now: float, owner: Owner | None = None) -> int:
        stores = (self._store, self._index, self._known)
        swept = await self._run(self._writer, forget_expired, *stores, now, owner)
        for expired in swept:
            await self._tell(expired.owner, expired.fact_ids, ())
        return sum(len(expired.fact_ids) for expired in swept)

    async def _expire_overdue(self, owner: Owner) -> None:
        """A text whose fact nobody can see any more must not be a duplicate of it."""
        now = self._store.now()
        if self._known.overdue(owner, now):
            await self._expire(now, owner)

    async def _tell(self, owner: Owner, gone: Sequence[str], facts: Sequence[Fact]) -> None:
        """Tell the sink what went and what came, but not of a fact that was deleted before there was time to."""
        if gone:
            self._sink.forgotten(owner, gone)
        alive = tuple(fact for fact in facts if self._known.get(owner, fact.id) is fact)
        if alive:
            self._sink.added(owner, alive)
        if gone:
            await self._sink.settled()

    async def _forget(self, owner: Owner, fact_id: str) -> bool:
        await self._expire_overdue(owner)
        was_there = await self._deletions.delete(Doomed(owner, fact_id))
        await self._tell(owner, (fact_id,) if was_there else (), ())
        return was_there

    async def _forget_many(self, owner: Owner, fact_ids: Sequence[str]) -> int:
        number = 0
        for at in range(0, len(fact_ids), FORGOTTEN_AT_ONCE):
            some = fact_ids[at : at + FORGOTTEN_AT_ONCE]
            there = await self._forget_all([Doomed(owner, fact_id) for fact_id in some])
            await self._tell(owner, [fact_id for fact_id, was in zip(some, there, strict=True) if was], ())
            number += sum(there)
        return number

    async def _forget_all(self, doomed: Sequence[Doomed]) -> Sequence[bool]:
        return await self._run(self._writer, forget_facts, self._store, self._index, self._known, doomed)

    async def _forget_owner(self, owner: Owner) -> int:
        stores = (self._store, self._index, self._known, owner)
        try:
            number = await self._run(self._writer, forget_owner, *stores)
        except StorageFull:  # the owner's KV is room too, and has to go in any case
            self._sink.owner_forgotten(owner)
            await self._sink.settled()
            number = await self._run(self._writer, forget_owner, *stores)
        self._embed.forget(owner)
        self._sink.owner_forgotten(owner)
        await self._sink.settled()
        return number

    @asynccontextmanager
    async def _turn(self, owner: Owner) -> AsyncIterator[None]:
        """The owner's turn to write, while no switch of embedders goes on."""
        async with self._turns.of(owner), self._gate.passing():
            yield

    async def _finish(self, write: Coroutine[Any, Any, T]) -> T:
        """Run a write to its end even when the caller is cancelled, so that a committed fact is always findable."""
        task = asyncio.ensure_future(write)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await asyncio.shield(task)

    async def _run(self, executor: ThreadPoolExecutor, function: Callable[..., T], *args: object) -> T:
        if self._closed:
            raise Unavailable("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(executor, function, *args)
