"""mem0: a local Qdrant folder, its history database, or what `get_all` returned as JSON.

Knows: where mem0 keeps what. Refuses to know: vectors: facts are embedded anew. A Qdrant folder is opened by Qdrant's
own client, which unpickles what lies in it, so it must be one that you trust.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import pathname2url

from inferscale_server.errors import ConfigError
from inferscale_server.foreign.json_file import Numbered, listed, load_value, numbered
from inferscale_server.foreign.record import (
    Fault,
    LeftOut,
    Reading,
    Record,
    Unreadable,
    fact_fields,
    our_id,
    text_in,
    word_in,
)

SQLITE = b"SQLite format 3\x00"
PAGE = 256
NOT_MEMORIES = ("_entities", "mem0migrations")
OWN = frozenset(
    {"id", "data", "memory", "hash", "text_lemmatized", "created_at", "updated_at", "user_id", "agent_id", "run_id"}
    | {"actor_id", "role", "metadata", "expiration_date", "score", "payload"}
)


def read(path: Path) -> Reading:
    """The memories of a store of any of these kinds. Raises Unreadable, or ConfigError without Qdrant's client."""
    if path.is_dir():
        values = _points(path)
    elif _is_sqlite(path):
        return _history(path)
    else:
        values = numbered(listed(path, load_value(path), "results", "memories", "data"))
    return (_record(one) for one in values)


def _record(one: Numbered) -> Record | Fault | LeftOut:
    if not isinstance(one.value, Mapping):
        return Fault(one.number, "not an object")
    payload = one.value.get("payload")
    value = {**one.value, **(payload if isinstance(payload, Mapping) else {})}
    text = text_in(value, "memory", "data", "text")
    if text is None:
        return Fault(one.number, 'no text under "memory" or "data"')
    last_day = word_in(value, "expiration_date")
    if last_day is not None and last_day < datetime.now(UTC).date().isoformat():
        return LeftOut(one.number, "expired in mem0")
    user = word_in(value, "user_id")
    if user is None and (value.get("agent_id") or value.get("run_id")):
        return LeftOut(one.number, "of an agent or a run alone")
    nested = value.get("metadata")
    rest = {key: kept for key, kept in value.items() if key not in OWN}
    fields = fact_fields(
        text,
        id=our_id(one.value.get("id")),
        speaker=word_in(value, "actor_id") or word_in(value, "role"),
        agent_id=word_in(value, "agent_id"),
        run_id=word_in(value, "run_id"),
        created_at=word_in(value, "created_at"),
        updated_at=word_in(value, "updated_at"),
        expires_at=None if last_day is None else f"{last_day}T23:59:59Z",
        metadata={**rest, **(nested if isinstance(nested, Mapping) else {})},
    )
    return Record(one.number, user, fields)


def _points(folder: Path) -> Iterator[Numbered]:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise ConfigError("a Qdrant folder needs Qdrant's client: pip install 'inferscale-sdk[mem0]'") from error
    if not (folder / "meta.json").exists():
        raise Unreadable(f"{folder}: no Qdrant folder: it has no meta.json")
    try:
        client = QdrantClient(path=str(folder))
    except (RuntimeError, OSError, ValueError) as error:
        raise Unreadable(f"{folder}: {error}") from error
    return _scrolled(client)


def _scrolled(client: object) -> Iterator[Numbered]:
    number = 0
    try:
        for name in [one.name for one in client.get_collections().collections]:  # type: ignore[attr-defined]
            offset = None
            while not name.endswith(NOT_MEMORIES):
                points, offset = client.scroll(name, limit=PAGE, offset=offset, with_vectors=False)  # type: ignore[attr-defined]
                for point in points:
                    number += 1
                    yield Numbered(number, {"id": str(point.id), "payload": point.payload or {}})
                if offset is None:
                    break
    finally:
        client.close()  # type: ignore[attr-defined]


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from error


def _history(path: Path) -> Reading:
    """The last text of each memory that was not deleted; a history does not say whose they are."""
    query = "SELECT memory_id, new_memory, event, is_deleted, created_at, updated_at FROM history ORDER BY rowid"
    try:
        connection = sqlite3.connect(f"file:{pathname2url(str(path))}?mode=ro", uri=True)
        rows = connection.execute(query).fetchall()
        connection.close()
    except sqlite3.Error as error:
        raise Unreadable(f"{path}: not mem0's history: {error}") from error
    last = {row[0]: (number, row) for number, row in enumerate(rows, 1)}
    for number, (memory_id, text, event, is_deleted, created_at, updated_at) in last.values():
        if event == "DELETE" or is_deleted:
            yield LeftOut(number, "deleted in mem0")
        else:
            said = {"id": memory_id, "memory": text, "created_at": created_at, "updated_at": updated_at}
            yield _record(Numbered(number, said))
