"""Export and import of one user's facts as NDJSON: text, metadata and times, never KV.

Knows: lines, batches, and what became of each line. Refuses to know: how facts are kept. Neither holds more than a page
or a batch in memory. An import that breaks off can be run again: what it stored is a duplicate then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from inferscale_server.edge.answers import clip
from inferscale_server.edge.imported import parse_imported
from inferscale_server.edge.ndjson import MEDIA_TYPE, IncomingLines, Line, LineSplitter
from inferscale_server.edge.query import owner_in, query_of
from inferscale_server.edge.services import Services
from inferscale_server.edge.shown import Shown, show_fact
from inferscale_server.errors import InvalidRequest, RequestError
from inferscale_server.limits import MAX_IMPORT_BLANK_LINES, MAX_IMPORT_FAILURES
from inferscale_server.memory import MemoryService
from inferscale_server.types import Fact, ImportedFact, Owner

BATCH = 256
"""Facts imported in one transaction."""
CHUNK = 64
"""Facts exported in one piece of the response."""

LINES_AT_A_STRETCH = 256
"""Lines of an import read before other requests have their turn: blank ones and broken ones fill no batch."""

_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""JSON escapes those below a blank by itself."""


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A fact and the line that it stood on."""

    line: int
    fact: ImportedFact


@dataclass(slots=True)
class Import:
    """One import on its way into the memory service."""

    memory: MemoryService
    owner: Owner
    imported: int = 0
    duplicates: int = 0
    new_ids: int = 0
    failed: list[Shown] = field(default_factory=list)
    _batch: list[_Numbered] = field(default_factory=list)
    _blank: int = 0

    async def take(self, line: Line) -> None:
        """Read one line; store the batch that it fills. Raises RequestError that says how far the import came."""
        if line.content is not None and not line.content.strip():
            self._skip(line.number)
            return
        try:
            self._batch.append(_Numbered(line.number, parse_imported(line.content)))
        except RequestError as error:
            self._fail(line.number, error.message)
        if len(self._batch) >= BATCH:
            await self.flush()

    async def flush(self) -> None:
        """Store what has been read. Raises RequestError like `take`."""
        batch, self._batch = self._batch, []
        if not batch:
            return
        try:
            outcomes = await self.memory.add(self.owner, [one.fact for one in batch])
        except RequestError as error:
            raise self._broken_off(error, batch[0].line) from error
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.status == "failed":
                self._fail(one.line, outcome.reason or "failed")
            elif outcome.status == "duplicate":
                self.duplicates += 1
            else:
                self.imported += 1
                self.new_ids += outcome.reason is not None

    def shown(self) -> Shown:
        """What became of it, as JSON."""
        self.failed.sort(key=lambda one: int(str(one["line"])))
        renamed: Shown = {"new_ids": self.new_ids} if self.new_ids else {}
        return {"imported": self.imported, "duplicates": self.duplicates, "failed": self.failed, **renamed}

    def _skip(self, line: int) -> None:
        self._blank += 1
        if self._blank > MAX_IMPORT_BLANK_LINES:
            error = InvalidRequest(f"more than {MAX_IMPORT_BLANK_LINES} lines are blank", code="too_many_blank_lines")
            raise self._broken_off(error, line)

    def _fail(self, line: int, reason: str) -> None:
        if len(self.failed) >= MAX_IMPORT_FAILURES:
            first = self.failed[0]
            error = InvalidRequest(
                f"more than {MAX_IMPORT_FAILURES} lines failed; line {first['line']}: {first['reason']}",
                code="too_many_failures",
            )
            raise self._broken_off(error, line)
        self.failed.append({"line": line, "reason": clip(reason)})

    def _broken_off(self, error: RequestError, line: int) -> RequestError:
        error.message += (
            f" (stopped at line {line}; {self.imported} facts are imported, the same file can be sent again)"
        )
        return error


class TransferRoutes:
    """The handlers. `started` gives the services, or raises Unavailable."""

    def __init__(self, started: Callable[[], Services]) -> None:
        self._started = started

    async def export(self, request: Request) -> Response:
        """GET /v1/memories/export: one fact a line, oldest first, as fast as the client reads."""
        owner = owner_in(request, query_of(request, {"user_id"}))
        pieces = _pieces(self._started().memory.export(owner))
        first = await anext(pieces, b"")  # a failure here still has a status of its own
        return StreamingResponse(_behind(first, pieces), media_type=MEDIA_TYPE)

    async def import_(self, request: Request) -> Response:
        """POST /v1/memories/import: each batch is committed before the next is read."""
        lines = IncomingLines(request)
        try:
            return JSONResponse(await self._import(request, lines))
        except RequestError:
            await lines.discard_rest()
            raise

    async def _import(self, request: Request, lines: IncomingLines) -> Shown:
        owner = owner_in(request, query_of(request, {"user_id"}))
        arriving = Import(self._started().memory, owner)
        splitter = LineSplitter()
        async for piece in lines.pieces():
            for line in splitter.push(piece):
                await arriving.take(line)
                if line.number % LINES_AT_A_STRETCH == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)  # a body that lies ready would otherwise be read without a pause
        for line in splitter.close():
            await arriving.take(line)
        await arriving.flush()
        return arriving.shown()


async def _pieces(facts: AsyncIterator[Fact]) -> AsyncIterator[bytes]:
    lines: list[str] = []
    async for fact in facts:
        lines.append(_line(fact))
        if len(lines) >= CHUNK:
            yield "".join(lines).encode()
            lines.clear()
    if lines:
        yield "".join(lines).encode()


def _line(fact: Fact) -> str:
    """One line for every reader: some take other characters than \\n for line ends as well."""
    line = json.dumps(show_fact(fact), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return line.translate(_LINE_ENDS) + "\n"


async def _behind(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
