"""The read verb: question -> embedding -> nearest facts -> plan. The hot path: no SQL, no RPC.

Joins the memory service, the catalog and the encoder; refuses to know HTTP and vLLM (the frame comes from outside).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.costs import Costs, Estimate
from inferscale_server.encode import Encoder
from inferscale_server.fact_lines import FactLines
from inferscale_server.filters import Filter
from inferscale_server.job import Job
from inferscale_server.kv_codec import digest_of
from inferscale_server.memory import MemoryService
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan, cheaper, fit, foreseen, plan_memory
from inferscale_server.staging import Coming, Wanted
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import FactOrder, Hit, Mode, Owner
from inferscale_server.wording import Wording

LONG_CONTEXT_CHARS = 16_000
"""Tokenizing that much takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """What was found for one question, best first, and how long it took (milliseconds). `owner`: whose KV serves it."""

    owner: Owner
    hits: tuple[Hit, ...]
    context: tuple[str, ...]
    embed_ms: float = 0.0
    search_ms: float = 0.0
    epoch: int = 0
    """The owner's before the search: in a later one some of this is forgotten, and nobody would tell of it again."""

    @property
    def empty(self) -> bool:
        """Nothing to put into the prompt."""
        return not self.hits and not self.context


@dataclass
class Recall:
    """Answers "what goes into this prompt, and from where?"."""

    memory: MemoryService
    catalog: Catalog
    encoder: Encoder
    tokenize: LineTokenizer
    default_k: int
    tail_tokens: int
    order: FactOrder = "best_last"
    kv_refusals: list[str] = field(default_factory=list)
    wording: Wording = field(default_factory=Wording)
    costs: Costs | None = None
    """What `auto` chooses by; None until they are measured: then it takes KV."""
    fact_lines: FactLines = field(init=False)

    def __post_init__(self) -> None:
        self.fact_lines = FactLines(self.tokenize, self.wording)

    async def find(
        self,
        owner: Owner,
        query: str,
        k: int | None,
        min_score: float | None,
        context: Sequence[str],
        where: Filter | None = None,
    ) -> Recollection:
        """The owner's facts nearest to the query, of those that `where` matches. Raises Unavailable when embedding
        fails."""
        facts_of = owner.itself
        epoch = self.memory.epoch(facts_of)
        await self._read_context(facts_of, context)
        if not query.strip() or self.memory.count(facts_of) == 0:
            return Recollection(owner, (), tuple(context), epoch=epoch)
        started = perf_counter()
        vector = await self.memory.embed_query(facts_of, query)
        embedded = perf_counter()
        hits = await self.memory.find(facts_of, vector, k or self.default_k, min_score, where, query)
        embed_ms, search_ms = 1e3 * (embedded - started), 1e3 * (perf_counter() - embedded)
        return Recollection(owner, hits, tuple(context), embed_ms, search_ms, epoch)

    def text_s(self, tokens: int) -> float | None:
        """Seconds that computing so many tokens takes; None before that was measured."""
        return None if self.costs is None else 1e-3 * self.costs.prefill.ms(tokens)

    def lines(self, found: Recollection, room_tokens: int) -> tuple[MemoryLine, ...]:
        """What of this goes into the prompt, best first, with what lies in the slab now; at most `room_tokens`.

        A caller's context counts as better than any hit and keeps its order in the prompt.
        """
        lines = []
        for text in reversed(found.context):
            ids = self.tokenize(self.wording.line(text), found.owner.itself)
            lines.append(MemoryLine(None, text, None, ids, self._chunk(_context_key(found.owner, ids), ids)))
        facts = self.fact_lines.of(found.owner, [hit.fact for hit in found.hits], keep=self._stands(found))
        for hit, line in zip(found.hits, facts, strict=True):
            fact, ids = line.fact, line.token_ids
            lines.append(MemoryLine(fact.id, fact.text, hit.score, ids, self._chunk(line.key, ids), fact.seq))
        return fit(lines, room_tokens)

    def wanted(
        self, found: Recollection, frame: Frame, lines: Sequence[MemoryLine], mode: Mode, refusal: str | None
    ) -> tuple[Wanted, ...]:
        """All these lines, best first, when some of them may be brought up for a plan that could inject them; else
        none. Without its header encoded no plan injects anything."""
        if mode not in ("auto", "kv") or self._refusal(refusal) or all(line.chunk is not None for line in lines):
            return ()
        if header_job_of(found.owner, frame.before).key not in self.catalog:
            return ()
        return tuple(Wanted(_key_of(found.owner, line), line.token_ids) for line in lines)

    def weighed(self, frame: Frame, lines: Sequence[MemoryLine], mode: Mode, coming: Coming) -> Estimate | None:
        """Both ways of a prompt for which something is coming, as KV with the time that this takes; None where mode and
        server leave no choice."""
        if mode != "auto" or self.costs is None or not coming:
            return None
        estimate = foreseen(frame, lines, coming.tokens, self.tail_tokens, self.costs)
        return replace(estimate, kv_ms=estimate.kv_ms + 1e3 * coming.seconds)

    def plan(
        self,
        found: Recollection,
        frame: Frame,
        mode: Mode,
        room_tokens: int,
        refusal: str | None = None,
        lines: Sequence[MemoryLine] | None = None,
    ) -> MemoryPlan:
        """The prompt for these facts inside this frame; at most `room_tokens` of memory. Queues what is not encoded.

        `lines`: what `lines` has just given, if it was asked already.
        """
        lines = self.lines(found, room_tokens) if lines is None else lines
        header_job = header_job_of(found.owner, frame.before)
        header = self.catalog.get(header_job.key)
        refusal = self._refusal(refusal)
        plan = plan_memory(frame, lines, header, mode, refusal, self.tail_tokens, self.order)
        if refusal is None and mode in ("auto", "kv"):
            missing = [Job(_key_of(found.owner, line), line.token_ids) for line in lines if line.chunk is None]
            missing = missing if header is not None else [header_job, *missing]
            if missing and self._stands(found):
                self.encoder.want(found.owner, missing)
        if mode == "auto" and plan.mode == "kv" and self.costs is not None:
            return cheaper(plan, self.costs, len(frame.before))
        return plan

    async def _read_context(self, owner: Owner, context: Sequence[str]) -> None:
        """Tokenize long texts of a caller beforehand: others have the event loop between two of them."""
        if sum(map(len, context)) < LONG_CONTEXT_CHARS:
            return
        for text in context:
            line = self.wording.line(text)
            if not self.tokenize.knows(line, owner):
                self.tokenize(line, owner)
                await asyncio.sleep(0)

    def _stands(self, found: Recollection) -> bool:
        """Was nothing of the owner's forgotten since the search?"""
        return self.memory.epoch(found.owner.itself) == found.epoch

    def _refusal(self, refusal: str | None) -> str | None:
        return refusal or ("unsupported_model" if self.kv_refusals else None)

    def _chunk(self, key: ChunkKey, token_ids: tuple[int, ...]) -> Chunk | None:
        chunk = self.catalog.get(key)
        return chunk if chunk is not None and chunk.token_ids == token_ids else None


def _key_of(owner: Owner, line: MemoryLine) -> ChunkKey:
    return _context_key(owner, line.token_ids) if line.name is None else ChunkKey("fact", owner, line.name)


def _context_key(owner: Owner, token_ids: tuple[int, ...]) -> ChunkKey:
    return ChunkKey("context", owner, digest_of(token_ids))


def header_job_of(owner: Owner, token_ids: tuple[int, ...]) -> Job:
    """The job that encodes a header: shared by a tenant's users, since it holds nothing of theirs."""
    return Job(ChunkKey("header", replace(owner, user=""), digest_of(token_ids)), token_ids)
