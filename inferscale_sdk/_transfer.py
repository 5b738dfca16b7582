"""Facts as lines of JSON (NDJSON), out of a server and into one. No I/O here.

An import goes in batches, so that a failed try repeats one batch only and nobody holds all of it in memory; repeating
a batch is safe, since a fact that is there already is a duplicate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from inferscale_sdk import _request
from inferscale_sdk._errors import APIResponseValidationError
from inferscale_sdk._memory_calls import ROUTE, reader, time_json
from inferscale_sdk._memory_models import Fact, FailedLine, ImportResult
from inferscale_sdk._owner import check_id
from inferscale_sdk._reply import Reply
from inferscale_sdk._request import Call, Request
from inferscale_sdk._wire import parse_object

BATCH = 500
MOMENTS = ("timestamp", "created_at", "updated_at", "expires_at")

FactLine = Fact | Mapping[str, object] | bytes
"""A fact to import: as `export` gave it, as a dict of its fields, or one line of an export file as it is."""


@dataclass(slots=True)
class LineFeed:
    """Bytes as they come, to whole lines without their ends; empty lines are left out."""

    _rest: bytes = b""

    def push(self, piece: bytes) -> Iterator[bytes]:
        """The lines that this piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        yield from filter(None, lines)

    def close(self) -> None:
        """Raises APIResponseValidationError when the stream ended within a line."""
        if self._rest:
            raise APIResponseValidationError("unexpected answer: the export ended within a line")


@dataclass(slots=True)
class Tally:
    """The sum of the batches sent so far."""

    lines: int = 0
    imported: int = 0
    duplicates: int = 0
    new_ids: int = 0
    failed: list[FailedLine] = field(default_factory=list)

    def add(self, batch: Batch, result: ImportResult) -> None:
        """Count one batch; its line numbers become those of the whole import."""
        self.imported += result.imported
        self.duplicates += result.duplicates
        self.new_ids += result.new_ids
        self.failed += [FailedLine(line=self.lines + one.line, reason=one.reason) for one in result.failed]
        self.lines += batch.lines

    def result(self) -> ImportResult:
        """All of it."""
        numbers = {"imported": self.imported, "duplicates": self.duplicates, "new_ids": self.new_ids}
        return ImportResult(failed=tuple(self.failed), **numbers)


@dataclass(frozen=True, slots=True)
class Batch:
    """One request of an import and how many lines it carries."""

    call: Call[ImportResult]
    lines: int


def export_request(user: str) -> Request:
    """All facts of a user, streamed."""
    return _request.get(f"{ROUTE}/export", user=check_id(user))


def export(user: str) -> Call[tuple[Fact, ...]]:
    """All facts of a user in one answer."""
    return Call(export_request(user), _parse_export)


def parse_line(line: bytes, request_id: str | None) -> Fact:
    """One exported fact; `raw` is the line's JSON. Raises APIResponseValidationError."""
    try:
        decoded = json.loads(line)
    except ValueError as error:
        raise APIResponseValidationError("unexpected answer: a line is not JSON", request_id=request_id) from error
    return parse_object(Fact, decoded, request_id)


def import_(user: str, facts: Iterable[FactLine]) -> Call[ImportResult]:
    """All of these facts in one request."""
    lines = b"".join(_line(fact) for fact in _checked(facts))
    return Call(_request.post_lines(f"{ROUTE}/import", lines, user=check_id(user)), reader(ImportResult))


def batches(user: str, facts: Iterable[FactLine]) -> Iterator[Batch]:
    """The requests of an import, made as `facts` gives them."""
    check_id(user)
    given = iter(_checked(facts))
    while batch := list(islice(given, BATCH)):
        yield Batch(import_(user, batch), len(batch))


def _parse_export(reply: Reply) -> tuple[Fact, ...]:
    return tuple(parse_line(line, reply.request_id) for line in filter(None, reply.body.split(b"\n")))


def _checked(facts: Iterable[FactLine]) -> Iterable[FactLine]:
    if isinstance(facts, str | bytes | Mapping):
        raise TypeError(f"facts must be an iterable of facts, not {type(facts).__name__}")
    return facts


def _line(fact: object) -> bytes:
    if isinstance(fact, bytes):
        return _one_line(fact)
    if isinstance(fact, Fact):
        return _request.to_json(fact.model_dump(mode="json", exclude={"score"})) + b"\n"
    if not isinstance(fact, Mapping):
        raise TypeError(f"a fact must be a Fact, a dict or a line of bytes, not {type(fact).__name__}")
    moments = {key: time_json(v, key) for key, v in fact.items() if key in MOMENTS and isinstance(v, datetime)}
    return _request.to_json({**fact, **moments}) + b"\n"  # text that is no moment: the server says which line it is in


def _one_line(line: bytes) -> bytes:
    bare = line.rstrip(b"\r\n")
    if b"\n" in bare:
        raise ValueError("a line of bytes must be one line")
    return bare + b"\n"
