"""A fake serving engine for the encoder, and the small world around it: words as tokens, facts in a dictionary."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command, Extent, rows_of
from inferscale_server.encode import Encoder, FactSource
from inferscale_server.errors import KvFileError
from inferscale_server.job import Job, marks_of
from inferscale_server.kv_codec import GroupShape, KvHeader, KvLayout, payload_digest
from inferscale_server.kv_disk import KvDisk
from inferscale_server.kv_files import kv_path, read_kv, write_temporary
from inferscale_server.kv_order import FileOrder, FileReport
from inferscale_server.news import News
from inferscale_server.quiet import Quiet
from inferscale_server.recipe import Recipe
from inferscale_server.types import Fact, Owner
from inferscale_server.vectors import NO_VECTORS, FactVectors
from inferscale_server.wording import Wording

HEADER_IDS = (1, 2, 3, 4)
ISOLATED = Recipe(header=False)
HEADER = Job(ChunkKey("header", Owner("local", ""), "default"), HEADER_IDS)


class WordTokenizer:
    """One token a word; equal words are equal tokens. What LineTokenizer is to the encoder, without a model."""

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def __call__(self, line: str, owner: Owner | None = None) -> tuple[int, ...]:
        return tuple(self._words.setdefault(word, 100 + len(self._words)) for word in line.split())


@dataclass(frozen=True)
class Encoded:
    """One captured chunk as the engine got it: what stood before its tokens, and those. `injected` tokens came from
    the slab; `request` numbers the request that captured it, with others perhaps."""

    before: tuple[int, ...]
    own: tuple[int, ...]
    capture: Capture
    injected: int
    request: int


@dataclass
class FakeEngine:
    """Captures everything, at once, into a dictionary of rows; `refuses(encoded)` leaves a capture incomplete.

    `during` runs inside each encode request: the place to delete something that is being encoded.
    """

    rows: dict[int, tuple[int, int]] = field(default_factory=dict)  # row -> (stamp, token)
    weights: dict[int, str] = field(default_factory=dict)  # row -> the adapter that computed it
    base: str = ""  # the fingerprint of the model without one
    requests: list[Encoded] = field(default_factory=list)
    refuses: Callable[[Encoded], bool] = lambda encoded: False
    during: Callable[[Encoded], None] = lambda encoded: None
    fail: Exception | None = None
    most_at_once: int = 0
    loads: list[int] = field(default_factory=list)  # chunks of each load command
    during_save: Callable[[FileOrder], None] = lambda order: None
    quiet: Quiet = field(default_factory=Quiet)
    prefilled: int = 0  # tokens computed, throw-away ones included
    most: int | None = None  # tokens that one request may compute, throw-away ones aside
    checks_rows: bool = True  # that what is injected lies there
    largest: int = 0  # tokens that one request did compute, throw-away ones aside
    number: int = 0  # of requests
    _running: int = 0

    def most_tokens(self) -> int | None:
        return self.most

    def starved(self) -> bool:
        return False

    async def encode(self, prompt_ids: Sequence[int], command: Command, adapter: str = "") -> None:
        injected = self._injected(prompt_ids, command, adapter)
        self.prefilled += len(prompt_ids) - injected
        self.largest = max(self.largest, len(prompt_ids) - injected - SPARE_TOKENS)
        self.number += 1
        chunks = []
        for capture in command.captures:
            before, own = prompt_ids[: capture.start], prompt_ids[capture.start : capture.start + capture.length]
            chunks.append(Encoded(tuple(before), tuple(own), capture, injected, self.number))
        assert len(prompt_ids) == sum(map(len, (chunks[-1].before, chunks[-1].own))) + SPARE_TOKENS
        assert injected <= chunks[0].capture.start, "what is injected is not computed, and not captured"
        self.requests += chunks
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        await asyncio.sleep(0)
        try:
            for encoded in chunks:
                self.during(encoded)
        finally:
            self._running -= 1
        if self.fail is not None:
            raise self.fail
        for encoded in [chunk for chunk in chunks if not self.refuses(chunk)]:
            for row, token in zip(rows_of(encoded.capture.extents), encoded.own, strict=True):
                self.rows[row] = (encoded.capture.stamp, token)
                self.weights[row] = adapter

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        return [all(self.rows.get(row, (0, 0))[0] == stamp for row in rows_of(ext)) for stamp, ext in attempts]

    async def wipe(self, extents: Sequence[Extent]) -> None:
        for row in rows_of(extents):
            self.rows.pop(row, None)

    async def calm(self, limit_s: float) -> bool:
        return await self.quiet.wait(limit_s)

    async def save(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        """As a worker does, with one number a token for key and value."""
        return [self._save(order) for order in orders]

    async def load(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        self.loads.append(len(orders))
        return [self._load(order) for order in orders]

    def _save(self, order: FileOrder) -> FileReport:
        self.during_save(order)
        rows = [self.rows.get(row, (0, 0)) for row in rows_of(order.extents)]
        if any(stamp != order.stamp for stamp, _ in rows):
            return FileReport("replaced")
        payload = memoryview(array("f", [token for _, token in rows] * 2)).cast("B")
        header = KvHeader(order.identity, ONE_NUMBER, payload_digest([payload]))
        try:
            return FileReport("ok", write_temporary(kv_path(order.folder, order.stem, 0), header, [payload]))
        except OSError:
            return FileReport("unwritable")

    def _load(self, order: FileOrder) -> FileReport:
        try:
            file = read_kv(kv_path(order.folder, order.stem, 0))
        except KvFileError as error:
            return FileReport(error.reason)
        assert file.header.identity == order.identity
        tokens = array("f", bytes(file.payload))[: file.header.identity.tokens]
        for row, token in zip(rows_of(order.extents), tokens, strict=True):
            self.rows[row] = (order.stamp, int(token))
            self.weights[row] = "" if order.identity.fingerprint == self.base else order.identity.fingerprint
        return FileReport("ok", len(file.payload))

    def tokens_of(self, chunk: Chunk) -> tuple[int, ...]:
        """What the slab holds for a chunk."""
        return tuple(self.rows[row][1] for row in rows_of(chunk.extents))

    def _injected(self, prompt_ids: Sequence[int], command: Command, adapter: str) -> int:
        """How many tokens are injected: they are the prompt's first, and their rows must still hold them, computed with
        the same weights."""
        if command.injection is None:
            return 0
        token_ids = command.injection.token_ids
        assert tuple(prompt_ids[: len(token_ids)]) == token_ids
        if self.checks_rows:
            assert tuple(self.rows[row][1] for row in rows_of(command.injection.extents)) == token_ids
            assert {self.weights[row] for row in rows_of(command.injection.extents)} <= {adapter}
        return len(token_ids)


ONE_NUMBER = KvLayout("float32", (GroupShape(1, 1, 1),), 0, 1)
"""A model of one layer, one head, one dimension: a key and a value of 4 bytes a token."""


@dataclass
class World:
    """An encoder with everything around it."""

    catalog: Catalog
    engine: FakeEngine
    encoder: Encoder
    tokenize: WordTokenizer
    facts: dict[Owner, list[Fact]]
    disk: KvDisk | None = None
    news: News = field(default_factory=News)

    def __post_init__(self) -> None:
        self.news.encoder = self.encoder

    def add(self, *facts: Fact) -> None:
        """Store facts and tell the encoder, as the memory service does."""
        for fact in facts:
            self.facts.setdefault(fact.owner, []).append(fact)
        self.news.added(facts[0].owner, facts)

    def delete(self, fact: Fact) -> None:
        """Forget one fact."""
        self.facts[fact.owner].remove(fact)
        self.news.forgotten(fact.owner, (fact.id,))

    def delete_owner(self, owner: Owner) -> None:
        """Forget everything of an owner."""
        self.facts.pop(owner, None)
        self.news.owner_forgotten(owner)

    def chunk(self, fact: Fact, owner: Owner | None = None) -> Chunk | None:
        """The fact's chunk, if it is encoded; of the owner through an adapter, if one is given."""
        return self.catalog.get(ChunkKey("fact", owner or fact.owner, fact.id))

    def requests_for(self, fact: Fact) -> list[Encoded]:
        """Encode requests that captured exactly this fact."""
        own = self.encoder.job_of(fact).token_ids
        return [encoded for encoded in self.engine.requests if encoded.own == own]


def world(
    rows: int = 1_000,
    recipe: Recipe | None = None,
    max_model_len: int = 500,
    folder: Path | None = None,
    facts: dict[Owner, list[Fact]] | None = None,
    budget_bytes: int = 1 << 20,
    fingerprint: str = "f",
    vectors_of: Callable[[Owner], FactVectors] = lambda owner: NO_VECTORS,
    kind: Callable[..., FakeEngine] = FakeEngine,
    **engine: Any,
) -> World:
    """A world with no facts and no disk unless told; the recipe is a primer of the 3 oldest facts unless told."""
    catalog, fake, tokenize = Catalog(rows, fingerprint), kind(base=fingerprint, **engine), WordTokenizer()
    facts = {} if facts is None else facts
    disk = None
    if folder is not None:
        disk = KvDisk(folder, budget_bytes, 1, 8, catalog, fake)
        disk.open({owner.digest(): marks_of(of_owner, Wording()) for owner, of_owner in facts.items()})
    encoder = Encoder(
        catalog,
        Recipe(primer_facts=3, choice="oldest") if recipe is None else recipe,
        fake,
        tokenize,  # type: ignore[arg-type]
        HEADER,
        FactSource(
            lambda owner: tuple(facts.get(owner, ())), vectors_of, count_of=lambda owner: len(facts.get(owner, ()))
        ),
        max_model_len,
        disk=disk,
    )
    return World(catalog, fake, encoder, tokenize, facts, disk)
