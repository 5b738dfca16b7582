"""The memory service: facts, vectors and an embedder joined behind an async interface.

Knows: which thread does what, and in which order a write and a delete become visible. Refuses to know: HTTP, vLLM, KV.

Threads: one writer thread does all SQLite work and all changes of index and read cache, so they never interleave; one
embedding thread runs the model; the event loop only reads. A write that has begun is finished, whatever becomes of
the request that asked for it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from inferscale_server.embed import Embedder
from inferscale_server.errors import NotFound, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.forget import forget_fact, forget_owner
from inferscale_server.index import VectorIndex
from inferscale_server.known import KnownFacts
from inferscale_server.limits import DEFAULT_PAGE, MAX_FACTS_PER_OWNER
from inferscale_server.remember import remember
from inferscale_server.types import AddOutcome, Fact, FactDraft, FactPage, Hit, Owner

T = TypeVar("T")
Floats = npt.NDArray[np.float32]

EMBED_SLICE = 32
"""Texts embedded at a stretch: a query waits behind one slice of a bulk load, not behind all of it."""
QUERY_CACHE_SIZE = 1_024
UNIT_TOLERANCE = 1e-3


class EncodeSink(Protocol):
    """Who turns facts into KV. Called on the event loop, after the commit; must be quick and must never raise."""

    def added(self, owner: Owner, facts: Sequence[Fact]) -> None:
        """These facts can be found now and may be encoded."""

    def forgotten(self, owner: Owner, fact_ids: Sequence[str]) -> None:
        """Drop these facts' KV at once, and whatever was encoded behind them."""

    def owner_forgotten(self, owner: Owner) -> None:
        """Drop all KV of this owner at once."""


@dataclass(slots=True)
class _Line:
    """Where adds of one owner queue."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class MemoryService:
    """Remember, find and forget facts. Belongs to one event loop; owns the store, which `aclose` closes."""

    def __init__(self, store: FactStore, index: VectorIndex, embedder: Embedder, sink: EncodeSink) -> None:
        """Nothing is read before `start`; `index` must be empty."""
        self._store = store
        self._index = index
        self._embedder = embedder
        self._sink = sink
        self._known = KnownFacts()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="inferscale-facts")
        self._embedding = ThreadPoolExecutor(1, thread_name_prefix="inferscale-embed")
        self._lines: dict[Owner, _Line] = {}
        self._writes: set[asyncio.Task[Any]] = set()
        self._queries: OrderedDict[tuple[Owner, str], Floats] = OrderedDict()
        self._closed = False

    async def start(self) -> None:
        """Claim the embedder and rebuild index and read cache. Raises ConfigError for another embedder than before."""
        await self._run(self._writer, self._load)

    async def add(self, owner: Owner, drafts: Sequence[FactDraft]) -> tuple[AddOutcome, ...]:
        """Store facts durably and make them findable, all or none; adds of one owner keep their order.

        Raises StorageFull or Unavailable with nothing stored.
        """
        async with self._turn(owner):
            vectors = await self._embed([draft.text for draft in drafts])
            return await self._finish(self._remember(owner, drafts, vectors))

    async def search(self, owner: Owner, query: str, k: int, min_score: float | None = None) -> tuple[Hit, ...]:
        """The owner's `k` facts nearest to the query, best first."""
        return self.search_vector(owner, await self.embed_query(owner, query), k, min_score)

    def search_vector(self, owner: Owner, vector: Floats, k: int, min_score: float | None = None) -> tuple[Hit, ...]:
        """Like `search` for a float32 [dimension] vector, from memory alone. Valid as of this call."""
        found = self._index.search(owner, vector, k, min_score)
        facts = ((self._known.get(owner, scored.fact_id), scored.score) for scored in found)
        return tuple(Hit(fact, score) for fact, score in facts if fact is not None)

    async def embed_query(self, owner: Owner, text: str) -> Floats:
        """Float32 [dimension]. Cached per owner: a shared cache would tell one owner what another asked."""
        key = (owner, text)
        vector = self._queries.get(key)
        if vector is None:
            vector = (await self._embed([text]))[0]
            self._queries[key] = vector
        self._queries.move_to_end(key)
        while len(self._queries) > QUERY_CACHE_SIZE:
            self._queries.popitem(last=False)
        return vector

    async def page(self, owner: Owner, limit: int = DEFAULT_PAGE, cursor: str | None = None) -> FactPage:
        """One page of the owner's facts, oldest first. Raises InvalidRequest for a bad limit or cursor."""
        return await self._run(self._writer, self._store.page, owner, limit, cursor)

    async def get(self, owner: Owner, fact_id: str) -> Fact:
        """One fact. Raises NotFound, also for another owner's fact."""
        fact = self._known.get(owner, fact_id)
        if fact is None:
            raise NotFound(f"no fact {fact_id!r}", param="id")
        return fact

    async def delete(self, owner: Owner, fact_id: str) -> None:
        """Forget one fact; nothing of it can be recalled when this returns. Raises NotFound like `get`."""
        await self._finish(self._forget(owner, fact_id))

    async def delete_owner(self, owner: Owner) -> int:
        """Forget all facts of an owner, also those of adds that came before this call; returns how many."""
        async with self._turn(owner):
            return await self._finish(self._forget_owner(owner))

    def epoch(self, owner: Owner) -> int:
        """Grows with every delete of this owner and survives restarts; what was cached under an older one is stale."""
        return self._known.epoch(owner)

    def facts(self, owner: Owner) -> tuple[Fact, ...]:
        """All facts of the owner, oldest first, from memory."""
        return self._known.of(owner)

    def owners(self) -> tuple[Owner, ...]:
        """All owners that have facts."""
        return self._known.owners()

    def index_bytes(self, owner: Owner) -> int:
        """Bytes of the owner's vectors in the index."""
        return self._index.bytes(owner)

    async def embed_texts(self, texts: Sequence[str]) -> Floats:
        """Float32 [texts, dimension], unit rows. Raises Unavailable when embedding fails."""
        return await self._embed(texts)

    def count(self, owner: Owner) -> int:
        """How many facts the owner has."""
        return self._known.count(owner)

    async def aclose(self) -> None:
        """Finish the writes that have begun, then close threads and store. Later calls raise Unavailable."""
        while self._writes:
            await asyncio.gather(*self._writes, return_exceptions=True)
        self._closed = True
        await asyncio.to_thread(self._writer.shutdown)
        await asyncio.to_thread(self._embedding.shutdown)
        self._store.close()

    def _load(self) -> None:
        self._store.claim_embedder(self._embedder.name, self._embedder.dimension)
        self._known.set_epochs(self._store.epochs())
        for vectors in self._store.vectors():
            self._known.add(self._store.oldest(vectors.owner, MAX_FACTS_PER_OWNER))
            self._index.add(vectors.owner, vectors.fact_ids, vectors.matrix)

    async def _remember(self, owner: Owner, drafts: Sequence[FactDraft], vectors: Floats) -> tuple[AddOutcome, ...]:
        stores = (self._store, self._index, self._known)
        remembered = await self._run(self._writer, remember, *stores, owner, drafts, vectors)
        if remembered.facts:
            self._sink.added(owner, remembered.facts)
        return remembered.outcomes

    async def _forget(self, owner: Owner, fact_id: str) -> None:
        await self._run(self._writer, forget_fact, self._store, self._index, self._known, owner, fact_id)
        self._sink.forgotten(owner, (fact_id,))

    async def _forget_owner(self, owner: Owner) -> int:
        number = await self._run(self._writer, forget_owner, self._store, self._index, self._known, owner)
        for key in [key for key in self._queries if key[0] == owner]:
            del self._queries[key]
        self._sink.owner_forgotten(owner)
        return number

    async def _embed(self, texts: Sequence[str]) -> Floats:
        """Float32 [texts, dimension], checked before anything is committed. Raises Unavailable."""
        slices = [texts[start : start + EMBED_SLICE] for start in range(0, len(texts), EMBED_SLICE)]
        rows = [await self._run(self._embedding, self._embedder.embed, part) for part in slices]
        vectors = np.concatenate(rows) if rows else np.zeros((0, self._embedder.dimension), np.float32)
        assert vectors.shape == (len(texts), self._embedder.dimension), (vectors.shape, len(texts))
        if not np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=UNIT_TOLERANCE):
            raise Unavailable("the embedder returned a vector that is not finite or not of length 1")
        return vectors

    @asynccontextmanager
    async def _turn(self, owner: Owner) -> AsyncIterator[None]:
        """First come, first served within one owner; an idle owner takes no memory."""
        line = self._lines.setdefault(owner, _Line())
        line.waiting += 1
        try:
            async with line.lock:
                yield
        finally:
            line.waiting -= 1
            if line.waiting == 0:
                del self._lines[owner]

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
