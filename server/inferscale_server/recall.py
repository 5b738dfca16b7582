"""The read verb: question -> embedding -> nearest facts -> plan. The hot path: no SQL, no RPC.

Joins the memory service, the catalog and the encoder; refuses to know HTTP and vLLM (the frame comes from outside).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.costs import Costs
from inferscale_server.encode import Encoder
from inferscale_server.filters import Filter
from inferscale_server.job import Job
from inferscale_server.kv_codec import digest_of
from inferscale_server.memory import MemoryService
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan, cheaper, fit, plan_memory
from inferscale_server.staging import Wanted
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import FactOrder, Hit, Mode, Owner
from inferscale_server.wording import Wording


@dataclass(frozen=True, slots=True)
class Recollection:
    """What was found for one question, best first, and how long it took (milliseconds)."""

    owner: Owner
    hits: tuple[Hit, ...]
    context: tuple[str, ...]
    embed_ms: float = 0.0
    search_ms: float = 0.0

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
        if not query.strip() or self.memory.count(owner) == 0:
            return Recollection(owner, (), tuple(context))
        started = perf_counter()
        vector = await self.memory.embed_query(owner, query)
        embedded = perf_counter()
        hits = await self.memory.find(owner, vector, k or self.default_k, min_score, where, query)
        return Recollection(owner, hits, tuple(context), 1e3 * (embedded - started), 1e3 * (perf_counter() - embedded))

    def text_s(self, tokens: int) -> float | None:
        """Seconds that computing so many tokens takes; None before that was measured."""
        return None if self.costs is None else 1e-3 * self.costs.prefill.ms(tokens)

    def wanted(self, found: Recollection) -> tuple[Wanted, ...]:
        """The texts that a plan for these facts would look for in the slab, best first."""
        context = [self._job_of_context(found.owner, text) for text in reversed(found.context)]
        facts = [self.encoder.job_of(hit.fact) for hit in found.hits]
        return tuple(Wanted(job.key, job.token_ids) for job in (*context, *facts))

    def plan(
        self, found: Recollection, frame: Frame, mode: Mode, room_tokens: int, refusal: str | None = None
    ) -> MemoryPlan:
        """The prompt for these facts inside this frame; at most `room_tokens` of memory. Queues what is not encoded."""
        lines = fit(self._lines(found), room_tokens)
        header_job = header_job_of(found.owner.tenant, frame.before)
        header = self.catalog.get(header_job.key)
        refusal = refusal or ("unsupported_model" if self.kv_refusals else None)
        plan = plan_memory(frame, lines, header, mode, refusal, self.tail_tokens, self.order)
        if refusal is None and mode in ("auto", "kv"):
            missing = [self._job(found.owner, line) for line in lines if line.chunk is None]
            self.encoder.want(found.owner, [header_job, *missing] if header is None else missing)
        if mode == "auto" and plan.mode == "kv" and self.costs is not None:
            return cheaper(plan, self.costs, len(frame.before))
        return plan

    def _lines(self, found: Recollection) -> list[MemoryLine]:
        """Best first; a caller's context counts as better than any hit and keeps its order in the prompt."""
        lines = []
        for text in reversed(found.context):
            ids = self.tokenize(self.wording.line(text), found.owner)
            key = ChunkKey("context", found.owner, digest_of(ids))
            lines.append(MemoryLine(None, text, None, ids, self._chunk(key, ids)))
        for hit in found.hits:
            fact = hit.fact
            ids = self.tokenize(self.wording.line(fact.text, fact.speaker, fact.occurred_at), found.owner)
            chunk = self._chunk(ChunkKey("fact", found.owner, fact.id), ids)
            lines.append(MemoryLine(fact.id, fact.text, hit.score, ids, chunk, fact.seq))
        return lines

    def _chunk(self, key: ChunkKey, token_ids: tuple[int, ...]) -> Chunk | None:
        chunk = self.catalog.get(key)
        return chunk if chunk is not None and chunk.token_ids == token_ids else None

    def _job_of_context(self, owner: Owner, text: str) -> Job:
        ids = self.tokenize(self.wording.line(text), owner)
        return Job(ChunkKey("context", owner, digest_of(ids)), ids)

    def _job(self, owner: Owner, line: MemoryLine) -> Job:
        if line.name is None:
            return Job(ChunkKey("context", owner, digest_of(line.token_ids)), line.token_ids)
        return Job(ChunkKey("fact", owner, line.name), line.token_ids)


def header_job_of(tenant: str, token_ids: tuple[int, ...]) -> Job:
    """The job that encodes a header: shared by a tenant's users, since it holds nothing of theirs."""
    return Job(ChunkKey("header", Owner(tenant, ""), digest_of(token_ids)), token_ids)
