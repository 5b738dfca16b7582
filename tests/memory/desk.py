"""A whole memory without a model: store, index, encoder, catalog and recall, around a fake engine and embedder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.catalog import Catalog, Pin
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.fact_lines import FactLines
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.plan import Frame, MemoryPlan
from inferscale_server.recall import Recall, header_job_of
from inferscale_server.recipe import Recipe
from inferscale_server.types import LOCAL_TENANT, FactDraft, Owner
from tests.memory.fakes import FakeEmbedder
from tests.unit.engines import HEADER_IDS, FakeEngine, WordTokenizer

FRAME = Frame(HEADER_IDS, (9, 9))
ROOM_TOKENS = 200
MAX_MODEL_LEN = 400


class ForgetfulEmbedder(FakeEmbedder):
    """Keeps no list of what it was asked: a test of growth must not grow itself."""

    def embed(self, texts):  # type: ignore[no-untyped-def]
        rows = super().embed(texts)
        self.calls.clear()
        return rows


class ForgetfulEngine(FakeEngine):
    """Keeps what it captured, but no list of requests."""

    async def encode(self, prompt_ids, command, adapter="") -> None:  # type: ignore[no-untyped-def]
        await super().encode(prompt_ids, command, adapter)
        self.requests.clear()


class _Sink:
    """The encoder and the lines of facts hear of every change, as in the server."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.added, self.settled = encoder.added, encoder.settled
        self.lines: FactLines | None = None

    def forgotten(self, owner: Owner, fact_ids: tuple[str, ...]) -> None:
        self._encoder.forgotten(owner, fact_ids)
        if self.lines is not None:
            self.lines.forget_facts(owner, fact_ids)

    def owner_forgotten(self, owner: Owner) -> None:
        self._encoder.owner_forgotten(owner)
        if self.lines is not None:
            self.lines.forget_owner(owner)


@dataclass(frozen=True)
class Desk:
    """Everything that a chat's plan joins; encoding goes on in the background."""

    memory: MemoryService
    catalog: Catalog
    encoder: Encoder
    recall: Recall

    async def add(self, owner: Owner, texts: list[str]) -> list[str]:
        """Store facts; returns their ids."""
        outcomes = await self.memory.add(owner, [FactDraft(text) for text in texts])
        return [str(outcome.id) for outcome in outcomes]

    async def plan(self, owner: Owner, question: str) -> tuple[MemoryPlan, Pin]:
        """What a chat would send, with its rows held as a chat holds them."""
        found = await self.recall.find(owner, question, 5, None, ())
        plan = self.recall.plan(found, FRAME, "auto", ROOM_TOKENS)
        return plan, self.catalog.pin(plan.chunks)

    async def encoded(self) -> None:
        """Wait until the encoder has nothing to do and no rows wait to be wiped."""
        busy = True
        async with asyncio.timeout(60):
            while busy:
                await asyncio.sleep(0)
                busy = self.encoder.queued() + self.encoder.running() > 0 or self.catalog.unwiped != ()


@asynccontextmanager
async def open_desk(folder: Path, rows: int) -> AsyncIterator[Desk]:
    """A desk with nothing stored but what `folder` holds, whose slab has `rows` rows."""
    catalog, tokenize = Catalog(rows, "f"), WordTokenizer()
    memory: MemoryService

    source = FactSource(lambda owner: memory.facts(owner), lambda owner: memory.vectors(owner))
    header = header_job_of(Owner(LOCAL_TENANT, ""), HEADER_IDS)
    encoder = Encoder(catalog, Recipe(primer_facts=3), ForgetfulEngine(), tokenize, header, source, MAX_MODEL_LEN)  # type: ignore[arg-type]
    memory = MemoryService(
        FactStore(folder / "facts.sqlite3"), ExactIndex(), ForgetfulEmbedder(), sink := _Sink(encoder)
    )
    recall = Recall(memory, catalog, encoder, tokenize, 5, 0)  # type: ignore[arg-type]
    sink.lines = recall.fact_lines
    await memory.start()
    background = asyncio.create_task(encoder.run())
    try:
        yield Desk(memory, catalog, encoder, recall)
    finally:
        background.cancel()
        with suppress(asyncio.CancelledError):
            await background
        await memory.aclose()
