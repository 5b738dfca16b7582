"""The API process's side, put together: stores, models and verbs of one server. Built once, when the engine is up.

Knows: what is joined to what. Refuses to know: vLLM, HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.config import ServerConfig
from inferscale_server.data_folder import DataFolder
from inferscale_server.edge.metrics import Metrics, Tier
from inferscale_server.edge.services import Footprint, Services
from inferscale_server.embed import Embedder, load_embedder
from inferscale_server.encode import Encoder
from inferscale_server.extraction.backlog import TurnBacklog
from inferscale_server.extraction.build import choose_extractor
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.heap import keep_all
from inferscale_server.kv_disk import KvDisk
from inferscale_server.memory import MemoryService
from inferscale_server.orphans import KV_FOLDER
from inferscale_server.readers import Readers
from inferscale_server.recall import Recall
from inferscale_server.salts import Salts
from inferscale_server.session_recall import SessionRecall
from inferscale_server.sessions import Sessions
from inferscale_server.staging import Stager
from inferscale_server.sweeper import sweep_forever
from inferscale_server.tiers import HostTier
from inferscale_server.tokens import LineTokenizer
from inferscale_server.types import Owner
from inferscale_server.upkeep import Upkeep

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 15.0


@dataclass
class KvSupport:
    """Can this server inject KV? `refusals` are sentences for the operator; none means yes."""

    refusals: list[str] = field(default_factory=list)
    backend: str = "none"
    layers: int = 0
    bytes_per_row: int = 0
    cold_bytes_per_row: int = 0
    """In host memory and in files, where rows may be quantised."""
    rotary_digest: str = ""
    block_tokens: int = 0
    """The prefix cache keeps whole blocks of so many tokens; 0: there is none."""
    vllm: str = "unknown"
    """Wheel and version."""
    gate: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)
    """What `auto` chooses by, as measured at this start."""


@dataclass
class Brain:
    """Everything that routes and chats need."""

    config: ServerConfig
    model_name: str
    folder: DataFolder
    memory: MemoryService
    embedder: Embedder
    catalog: Catalog
    encoder: Encoder
    recall: Recall
    tokenize: LineTokenizer
    salts: Salts
    metrics: Metrics
    support: KvSupport
    header_key: ChunkKey
    engine_stats: Callable[[], Awaitable[list[dict[str, Any]]]]
    sessions: Sessions
    stager: Stager
    readers: Readers
    fingerprint_with: Callable[[str], str]
    """Of the model with the LoRA adapter that has this digest."""
    host: HostTier | None = None
    disk: KvDisk | None = None
    extraction: Extraction | None = None
    backlog: TurnBacklog | None = None
    workers: list[dict[str, Any]] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start_encoding(self) -> None:
        """Sweep what expires and, in KV mode, encode what was stored before this start; in the background, from now."""
        keep_all()
        self.memory.start_building()
        self._tasks.append(asyncio.create_task(sweep_forever(self.memory)))
        if self.backlog is not None:
            self._tasks.append(asyncio.create_task(self.backlog.run()))
        if self.support.refusals:
            self.encoder.switch_off()
            return
        for owner in self.memory.owners():
            self.encoder.added(owner, ())
        self._tasks += [asyncio.create_task(self.encoder.run()), asyncio.create_task(self._watch_workers())]
        if self.host is not None:
            self._tasks.append(asyncio.create_task(self.host.run()))

    async def aclose(self) -> None:
        """Stop encoding, finish writes, release the data folder."""
        await self.stager.aclose()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.extraction is not None:
            await self.extraction.aclose()
        await self.memory.aclose()
        self.folder.release()

    @cached_property
    def session_recall(self) -> SessionRecall:
        """Plans the turns of sessions."""
        harmless, block_tokens = self.tokenize.harmless, self.support.block_tokens
        return SessionRecall(self.recall, self.sessions, self.stager, harmless, block_tokens=block_tokens)

    @cached_property
    def upkeep(self) -> Upkeep:
        """What the operator's routes do."""
        return Upkeep(self.config.facts_path, self.memory, self.config.data_path / KV_FOLDER, self._load_embedder)

    def _load_embedder(self, name: str) -> Embedder:
        return load_embedder(name, self.config.embedder_url, self.config.embedder_secret)

    def services(self) -> Services:
        """What the routes see."""
        return Services(
            memory=self.memory,
            footprint=self.footprint,
            embed=self.embed,
            embedder=self.memory.embedder.name,
            not_ready=self.not_ready,
            status=self.status,
            default_k=self.config.k,
            # After a reindexing the configured name is still the old one's.
            embedder_options=frozenset({self.config.embedder} if self.memory.embedder is self.embedder else ()),
            extraction=self.extraction,
            text_reasons=lambda: tuple(self.support.refusals),
        )

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One unit vector a text."""
        return (await self.memory.embed_texts(texts)).tolist()  # type: ignore[no-any-return]

    async def footprint(self, owner: Owner) -> Footprint:
        """What one owner's memory takes, through all adapters; `encoded` and `queued` are of the model without any."""
        readers = self.readers.of(owner)
        chunks = [chunk for reader in readers for chunk in self.catalog.of(reader)]
        copies = [] if self.host is None else [one for reader in readers for one in self.host.catalog.of(reader)]
        on_disk = {} if self.disk is None else self.disk.fact_tokens(owner)
        held = self.kv_bytes(owner)
        tokens = await asyncio.to_thread(_tokens_with_kv, chunks, copies, on_disk)
        return Footprint(
            facts=self.memory.count(owner),
            tokens=sum(tokens.values()),
            device_bytes=held["device"],
            host_bytes=held["host"],
            disk_bytes=held["disk"],
            facts_bytes=await self.memory.stored_bytes(owner),
            index_bytes=self.memory.index_bytes(owner),
            queued=0 if self.support.refusals else self.encoder.queued_of(owner),
            encoded=len(tokens),
        )

    def kv_bytes(self, owner: Owner | None) -> dict[Tier, int]:
        """Bytes of KV that an owner has in each tier, through all adapters; zeros for nobody.

        Adds up totals that are kept, a few a tier: every answer tells it.
        """
        if owner is None:
            return {"device": 0, "host": 0, "disk": 0}
        readers, host = self.readers.of(owner.itself), self.host
        copies = 0 if host is None else sum(map(host.catalog.row_count, readers))
        return {
            "device": sum(map(self.catalog.row_count, readers)) * self.support.bytes_per_row,
            "host": copies * self.support.cold_bytes_per_row,
            "disk": 0 if self.disk is None else self.disk.bytes_of(owner),
        }

    def not_ready(self) -> str | None:
        """The default header is the first thing encoded; until then a chat would be served as text."""
        if self.support.refusals or self.header_key in self.catalog:
            return None
        return "the default header is not encoded yet"

    def note_faults(self, where: str, counts: Mapping[str, int]) -> None:
        """Bring the fault counters up to counts that a half of the connector reports (they only grow)."""
        for hook, count in counts.items():
            name = f"{where}:{hook}"
            self.metrics.hook_failed(name, max(count - self.faults[name], 0))
            self.faults[name] = max(count, self.faults[name])

    async def _watch_workers(self) -> None:
        """Fetch injection times and fault counts now and then; never on a chat's way."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            try:
                await self._look_at_workers()
            except Exception as error:  # one command that failed must not end the watch: the next tells more
                logger.warning("inferscale: the workers could not be asked: %s", type(error).__name__)

    async def _look_at_workers(self) -> None:
        self.workers = await self.engine_stats()
        for rank, stats in enumerate(self.workers):
            self.note_faults(f"worker{rank}", stats["errors"])
        self.refresh_metrics()
        if self.disk is not None:
            await self.disk.note_used(self.catalog.take_used())

    def refresh_metrics(self) -> None:
        """Set the gauges."""
        self.metrics.encode_queue(self.encoder.queued())
        self.metrics.remember_queue(0 if self.backlog is None else len(self.backlog))
        self.metrics.slab(self.catalog.rows_used, self.catalog.rows)
        self.metrics.sessions(self.sessions.forget_idle())
        if self.host is not None:
            self.metrics.host(self.host.catalog.rows_used, self.host.catalog.rows)
        if self.disk is not None:
            self.metrics.kv_disk(self.disk.shelf.bytes, len(self.disk.shelf))
        self._tell_tiers()

    def _tell_tiers(self) -> None:
        """Bytes and budget of each; zeros for one that there is not."""
        tiers: tuple[tuple[Tier, Catalog | None, int], ...] = (
            ("device", self.catalog, self.support.bytes_per_row),
            ("host", None if self.host is None else self.host.catalog, self.support.cold_bytes_per_row),
        )
        for tier, rows, bytes_per_row in tiers:
            used, total = (0, 0) if rows is None else (rows.rows_used, rows.rows)
            self.metrics.tier(tier, used * bytes_per_row, total * bytes_per_row)
        shelf = None if self.disk is None else self.disk.shelf
        self.metrics.tier("disk", *((0, 0) if shelf is None else (shelf.bytes, shelf.budget_bytes)))

    def status(self) -> dict[str, object]:
        """Model, KV support, gate, slab and encoding, without a word about anybody's facts."""
        extractor = choose_extractor(self.config)
        return {
            "model": self.model_name,
            "embedder": self.memory.embedder.name,
            "recipe": self.config.recipe,
            "fingerprint": self.catalog.fingerprint,
            "kv": {
                "enabled": not self.support.refusals,
                "refusals": self.support.refusals,
                "backend": self.support.backend,
                "vllm": self.support.vllm,
                "layers": self.support.layers,
                "gate": self.support.gate,
                "tail_tokens": self.recall.tail_tokens,
                "costs": self.support.costs,
            },
            "slab": {
                "rows": self.catalog.rows,
                "rows_used": self.catalog.rows_used,
                "bytes_per_row": self.support.bytes_per_row,
                "pins": self.catalog.pins,
                "codec": self.config.kv_codec,
                "cold_bytes_per_row": self.support.cold_bytes_per_row,
            },
            "disk": {} if self.disk is None else self.disk.status(),
            "host": {} if self.host is None else self.host.status(),
            "staging": {f"{tier}:{result}": count for (tier, result), count in sorted(self.stager.results.items())},
            "sessions": len(self.sessions),
            "encoding": {
                "queued": self.encoder.queued(),
                "running": self.encoder.running(),
                "results": dict(self.encoder.results),
                "tokens": dict(self.encoder.tokens),
            },
            "extraction": {
                "extractor": extractor.name,
                "reason": extractor.reason,
                "from": self.config.extract_from,
                "contradictions": "model" if self.config.judged_by_model else "rule",
                "queued": 0 if self.backlog is None else len(self.backlog),
            },
            "workers": self.workers,
            "faults": dict(self.faults),
        }


def _tokens_with_kv(chunks: Sequence[Chunk], copies: Sequence[Chunk], on_disk: Mapping[str, int]) -> dict[str, int]:
    """Tokens of each fact that has KV in any tier, by its id; `on_disk` likewise.

    Looks at each of them, which may be 100,000: not for the event loop.
    """
    ours = [one for one in (*copies, *chunks) if one.key.kind == "fact" and not one.key.owner.adapter]
    return {**on_disk, **{one.key.name: len(one.token_ids) for one in ours}}
