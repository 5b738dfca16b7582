"""KV on disk, as the API process keeps it: what to write, what to load instead of encoding, what must be unlinked.

Knows: the folder, the shelf, the order of a write and a delete. Refuses to know: tensors (the workers read and write
the bytes) and what is worth encoding. KV is derived: whatever goes wrong here is counted, and its text
is encoded again.

A write: the workers put every rank's file beside its place; a thread forces them to the disk; then, on the event loop,
the files are renamed, unless their text was forgotten meanwhile. A delete takes the chunk off the shelf at once and
unlinks in a thread, which `settled` awaits. Files that survive a crash between the two are found by `sweep`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

from inferscale_server.catalog import Catalog, Chunk, ChunkKey
from inferscale_server.doomed_files import DoomedFiles
from inferscale_server.kv_codec import KvIdentity
from inferscale_server.kv_files import force, kv_path, remove, scan, temporary
from inferscale_server.kv_order import FileOrder, FileReport
from inferscale_server.kv_shelf import KvShelf, ShelfKey, StoredChunk, key_of
from inferscale_server.kv_survey import Marks, Survey
from inferscale_server.types import Owner

logger = logging.getLogger(__name__)

SLICE_CHUNKS = 8
SLICE_BYTES = 8 << 20
"""How much one command to the workers reads or writes: they do nothing else for its length, about two milliseconds a
MiB, half of them for the checksum. A larger chunk goes alone."""
FREE_RESERVE_BYTES = 64 << 20
"""Left free on the file system: facts, which are the truth, may lie on it too."""
CALM_S = 0.25
"""The longest that a write waits until no chat waits for its first token."""
SETTLE_S = 1.0
"""The longest that a delete waits for a write in hand; its files are dropped afterwards in any case."""

Event = Callable[[str, str], None]


class DiskEngine(Protocol):
    """The workers as this file sees them."""

    async def save(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        """Write each chunk's rows beside its files' places, on every rank."""

    async def load(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        """Fill each chunk's rows from its files, on every rank."""

    async def calm(self, limit_s: float) -> bool:
        """Return once no chat waits for the engine, or after so many seconds."""


@dataclass(frozen=True, slots=True)
class Filed:
    """A chunk in the slab, and what it is of."""

    chunk: Chunk
    identity: KvIdentity


@dataclass(slots=True)
class CommandTime:
    """How long commands of one kind to the workers took, the wait for the running step included; milliseconds."""

    commands: int = 0
    total: float = 0.0
    longest: float = 0.0


@dataclass(slots=True)
class _Write:
    """One chunk on its way to the disk."""

    filed: Filed
    order: FileOrder
    forgotten: bool = False


class KvDisk:
    """The KV files of one server. `events` counts by (what, result): save, load, drop."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        world: int,
        bytes_per_row: int,
        catalog: Catalog,
        engine: DiskEngine,
        on_event: Event = lambda what, result: None,
    ) -> None:
        """`world` is how many ranks write, `bytes_per_row` what one token takes on all of them."""
        self._folder, self._world, self._bytes_per_row = folder, world, bytes_per_row
        self._catalog, self._engine, self._on_event = catalog, engine, on_event
        self.shelf = KvShelf(budget_bytes, catalog.fingerprint)
        self.events: Counter[tuple[str, str]] = Counter()
        self.command_ms: dict[str, CommandTime] = {"save": CommandTime(), "load": CommandTime()}
        self._waiting: OrderedDict[ShelfKey, Filed] = OrderedDict()
        self._writes: list[_Write] = []
        self._writing = asyncio.Lock()
        self._doomed = DoomedFiles()
        self._complained = False

    def open(self, known: Mapping[str, Marks]) -> None:
        """Read what is there, and remove what does not check out or is of a text that is not known any more.

        What another model wrote stays, as far as the budget goes. `known`: by `Owner.digest()`. Blocks; raises nothing:
        an unreadable folder holds nothing."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = list(scan(self._folder))
        except OSError as error:
            self._complain("cannot be read", error)
            return
        for surveyed in Survey(self._catalog.fingerprint, self._world, known).of(found):
            stored = surveyed.stored
            if stored is None or stored.size_bytes > self.shelf.most_bytes(stored.identity):
                self._count("drop", surveyed.fault or ("unreadable" if stored is None else "too_large"))
                remove([file.path for file in surveyed.files])
                continue
            if stored.identity.fingerprint != self._catalog.fingerprint:
                self._count("keep", "fingerprint")
            if old := self.shelf.put(stored):
                self._discard(old, "replaced")
        self._evict()
        self._doomed.go_now()

    # Loading

    def finds(self, identity: KvIdentity) -> bool:
        """Could this be loaded instead of encoded?"""
        stored = self.shelf.get(key_of(identity))
        return stored is not None and stored.identity == identity

    def primer_of(self, owner: Owner, facts: int) -> tuple[str, ...]:
        """The first `facts` facts behind which most of the owner's stored chunks were encoded, in their order."""
        return self.shelf.primer_of(owner.digest(), facts, self._catalog.fingerprint_of(owner))

    async def load(self, wanted: Sequence[Filed]) -> list[bool]:
        """Fill the rows of reserved chunks; which of them hold their chunk now? What does not check out is removed."""
        done = []
        for part in self._slices(wanted):
            orders = [self._order(filed, self._stem_of(filed)) for filed in part]
            with self._clock("load"):
                reports = await self._engine.load(orders)
            done += [self._loaded(order, report) for order, report in zip(orders, reports, strict=True)]
        self._doomed.go()  # a chat waits for this load, and need not wait for other users' deletes
        return done

    def _loaded(self, order: FileOrder, report: FileReport) -> bool:
        key = key_of(order.identity)
        stored = self.shelf.use(key)
        if stored is None or stored.stem != order.stem:
            return report.result == "ok"  # forgotten or evicted meanwhile: the encoder knows about the former
        self._count("load", report.result)
        if report.result != "ok":
            self._discard(stored, report.result)
        return report.result == "ok"

    def _stem_of(self, filed: Filed) -> str:
        stored = self.shelf.get(key_of(filed.identity))
        return stored.stem if stored is not None else secrets.token_hex(32)

    def put(self, chunk: Chunk, identity: KvIdentity) -> None:
        """This chunk is encoded: write it when there is time, unless the budget is too small for it alone."""
        filed = Filed(chunk, identity)
        if self.shelf.budget_bytes > 0 and self._bytes(filed) > self.shelf.most_bytes(identity):
            self._count("save", "too_large")
        elif self.shelf.budget_bytes > 0 and not self.finds(identity):
            self._waiting[key_of(identity)] = filed

    @property
    def waiting(self) -> int:
        """Chunks that are still to be written."""
        return len(self._waiting)

    async def save_some(self) -> bool:
        """Write the next few; True when there was something to write. Only the encoder's task calls this."""
        if self._waiting:
            await self._engine.calm(CALM_S)
        part = self._take_waiting()
        if not part:
            return False
        async with self._writing:
            self._writes = [_Write(each, self._order(each, secrets.token_hex(32))) for each in part]
            try:
                await self._write(self._writes)
            finally:
                aside = [temporary(path) for write in self._writes for path in self._paths(write.order.stem)]
                await asyncio.to_thread(remove, aside)
                self._writes = []
        await self.settled()
        return True

    def _take_waiting(self) -> list[Filed]:
        """The next slice of those that still lie in the slab."""
        part: list[Filed] = []
        while self._waiting:
            key, filed = next(iter(self._waiting.items()))
            held = self._catalog.holds(filed.chunk)
            if held and not self._joins(part, filed):
                break
            del self._waiting[key]
            part += [filed] if held else []
        return part

    def _joins(self, part: Sequence[Filed], filed: Filed) -> bool:
        """Is there room for it in a slice that holds these?"""
        fits = len(part) < SLICE_CHUNKS and sum(map(self._bytes, [*part, filed])) <= SLICE_BYTES
        return fits or not part

    async def _write(self, writes: list[_Write]) -> None:
        if not await asyncio.to_thread(self._has_room, sum(self._bytes(write.filed) for write in writes)):
            self._is_full(writes)
            return
        with self._catalog.pinned(write.filed.chunk for write in writes), self._clock("save"):
            reports = await self._engine.save([write.order for write in writes])
        results: list[str] = []
        for write, report in zip(writes, reports, strict=True):
            results.append(await asyncio.to_thread(self._force, write, report))
            self._place(write, report.size_bytes, results[-1])
        self._evict()
        if "full" in results:
            self._make_space(writes)

    def _force(self, write: _Write, report: FileReport) -> str:
        """Bytes to the disk before the name: a file under its final name is whole."""
        if report.result != "ok":
            return report.result
        try:
            for path in self._paths(write.order.stem):
                force(temporary(path))
        except OSError as error:
            self._complain("cannot be written", error)
            return "unwritable"
        return "ok"

    def _place(self, write: _Write, size_bytes: int, result: str) -> None:
        """On the event loop, where deletes are announced: no delete comes between the question and the rename."""
        if result == "ok" and write.forgotten:
            result = "forgotten"
        if result == "ok" and size_bytes > self.shelf.most_bytes(write.filed.identity):
            result = "too_large"  # what a file has beside its rows is known only now
        if result == "ok":
            try:
                for path in self._paths(write.order.stem):
                    os.rename(temporary(path), path)
            except OSError as error:
                self._complain("cannot be written", error)
                self._doomed.add(self._paths(write.order.stem))
                result = "unwritable"
        if result == "ok":
            old = self.shelf.put(StoredChunk(write.order.stem, write.filed.identity, size_bytes, self._world))
            if old is not None:
                self._discard(old, "replaced")
        self._count("save", result)

    def _has_room(self, size_bytes: int) -> bool:
        try:
            return shutil.disk_usage(self._folder).free >= size_bytes + FREE_RESERVE_BYTES
        except OSError:
            return True  # the write will tell

    def _is_full(self, writes: list[_Write]) -> None:
        for _ in writes:
            self._count("save", "full")
        self._make_space(writes)

    def _make_space(self, writes: list[_Write]) -> None:
        """The file system is full: what was used longest ago makes room for the next write."""
        self._complain("is full", None)
        held = self.shelf.budget_bytes - self.shelf.bytes
        for stored in self.shelf.surplus(max(held, 0) + sum(self._bytes(write.filed) for write in writes)):
            self._discard(stored, "full")

    # Forgetting

    def forget_facts(self, owner: Owner, fact_ids: Iterable[str]) -> None:
        """Nothing of these facts, or encoded behind them, is loaded from now on; `settled` removes the bytes."""
        gone = set(fact_ids)
        touched = self.shelf.touching(owner.digest(), gone)
        self._forget(owner, touched, lambda of: of.name in gone or any(seen.fact_id in gone for seen in of.behind))

    def forget_owner(self, owner: Owner) -> None:
        """Nothing of this owner is loaded from now on; `settled` removes the bytes."""
        self._forget(owner, self.shelf.of(owner.digest()), lambda of: True)

    def _forget(self, owner: Owner, stored: Iterable[StoredChunk], doomed: Callable[[KvIdentity], bool]) -> None:
        digest = owner.digest()
        for each in stored:
            self._discard(each, "forgotten")
        for key in [k for k, filed in self._waiting.items() if k.owner == digest and doomed(filed.identity)]:
            del self._waiting[key]
        for write in self._writes:
            write.forgotten |= write.filed.identity.owner == digest and doomed(write.filed.identity)

    async def settled(self) -> None:
        """Return when the bytes of everything that was forgotten before this call are unlinked."""
        if any(write.forgotten for write in self._writes):
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S), self._writing:
                    pass
        await self._doomed.gone()

    async def note_used(self, keys: Iterable[ChunkKey]) -> None:
        """These were used in the slab: they are the last to go, also after a restart."""
        print_of = self._catalog.fingerprint_of
        of = [ShelfKey(print_of(key.owner), key.owner.digest(), key.kind, key.name) for key in keys]
        used = [self.shelf.use(key) for key in of]
        paths = [path for stored in used if stored is not None for path in self._paths(stored.stem)]
        await asyncio.to_thread(_touch, paths)

    def bytes_of(self, owner: Owner) -> int:
        """Bytes of one owner's files."""
        return self.shelf.bytes_of(owner.digest())

    def fact_tokens(self, owner: Owner) -> dict[str, int]:
        """Tokens of each of the owner's facts that could be loaded, by fact id."""
        return self.shelf.fact_tokens(owner.digest())

    def status(self) -> dict[str, object]:
        """Bytes, chunks and counts for the operator."""
        return {
            "bytes": self.shelf.bytes,
            "budget_bytes": self.shelf.budget_bytes,
            "chunks": len(self.shelf),
            "waiting": self.waiting,
            "command_ms": {what: asdict(time) for what, time in self.command_ms.items()},
            "events": {f"{what}:{result}": count for (what, result), count in sorted(self.events.items())},
        }

    def _evict(self) -> None:
        for stored in self.shelf.surplus():
            self._discard(stored, "budget")

    def _discard(self, stored: StoredChunk, reason: str) -> None:
        """Off the shelf, unless another has its place already, and its files are to be unlinked."""
        if self.shelf.get(stored.key) is stored:
            self.shelf.drop(stored.key)
        self._count("drop", reason)
        self._doomed.add(kv_path(self._folder, stored.stem, rank) for rank in range(stored.ranks))

    def _order(self, filed: Filed, stem: str) -> FileOrder:
        return FileOrder(self._folder, stem, filed.identity, filed.chunk.extents, filed.chunk.stamp)

    def _paths(self, stem: str) -> list[Path]:
        return [kv_path(self._folder, stem, rank) for rank in range(self._world)]

    def _bytes(self, filed: Filed) -> int:
        return filed.identity.tokens * self._bytes_per_row

    def _slices(self, wanted: Sequence[Filed]) -> Iterable[list[Filed]]:
        part: list[Filed] = []
        for filed in wanted:
            if not self._joins(part, filed):
                yield part
                part = []
            part.append(filed)
        if part:
            yield part

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        started = perf_counter()
        yield
        time, took = self.command_ms[what], 1e3 * (perf_counter() - started)
        time.commands, time.total, time.longest = time.commands + 1, time.total + took, max(time.longest, took)

    def _count(self, what: str, result: str) -> None:
        self.events[what, result] += 1
        self._on_event(what, result)
        if (what, result) == ("save", "ok"):
            self._complained = False

    def _complain(self, what: str, error: OSError | None) -> None:
        """Once, until a write succeeds again."""
        if not self._complained:
            reason = "" if error is None else f": {error.strerror}"
            logger.warning("inferscale: the folder for KV files %s%s; facts are encoded again instead", what, reason)
        self._complained = True


def _touch(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            os.utime(path)
