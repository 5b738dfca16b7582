"""The rows that tell a fact's life: what it said before while it lives, and after its end only that it existed.

Knows: the table `history`, inside a caller's transaction. Refuses to know: who asks. A fact that was never changed has
no rows here; its one event is read from the fact itself, so that adding facts costs nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Literal

from inferscale_server.limits import MAX_SUPERSEDED_KEPT, MAX_UPDATES_KEPT
from inferscale_server.types import Fact, FactEvent, FactHistory, Owner

_INSERT = "INSERT INTO history (owner_digest, fact_id, event, at)"
_SAID = ("text", "metadata", "speaker", "occurred_at", "session_id")
_WIPED = ", ".join(f"{column} = NULL" for column in _SAID)
_OF_FACT = "owner_digest = ? AND fact_id = ?"


def note_update(connection: sqlite3.Connection, old: Fact, new: Fact, max_bytes: int) -> None:
    """`old` says `new` from `new.updated_at` on. See `_keep_within` for `max_bytes`."""
    key = (old.owner.digest(), old.id)
    if connection.execute(f"SELECT 1 FROM history WHERE {_OF_FACT} LIMIT 1", key).fetchone() is None:
        _note(connection, old, "added", old.created_at)
    _note(connection, new, "updated", new.updated_at)
    connection.execute(
        f"DELETE FROM history WHERE {_OF_FACT} AND event = 'updated' AND number <= "
        f"(SELECT number FROM history WHERE {_OF_FACT} AND event = 'updated' ORDER BY number DESC LIMIT 1 OFFSET ?)",
        (*key, *key, MAX_UPDATES_KEPT),
    )
    _keep_within(connection, old.owner, max_bytes)


def note_return(connection: sqlite3.Connection, fact: Fact) -> None:
    """An imported fact whose id has a history: it lives once more."""
    key = (fact.owner.digest(), fact.id)
    if connection.execute(f"SELECT 1 FROM history WHERE {_OF_FACT} LIMIT 1", key).fetchone() is not None:
        _note(connection, fact, "added", fact.created_at)


def is_known(connection: sqlite3.Connection, fact_id: str, besides: Owner) -> bool:
    """Does any other owner's history tell of this id, also of one that has ended?"""
    query = "SELECT 1 FROM history WHERE fact_id = ? AND owner_digest <> ? LIMIT 1"
    return connection.execute(query, (fact_id, besides.digest())).fetchone() is not None


def note_end(
    connection: sqlite3.Connection,
    owner: Owner,
    fact_ids: Sequence[str],
    event: Literal["deleted", "expired"],
    at: float,
) -> None:
    """Forget what these facts of the owner ever said. To be called while their rows are still there."""
    digest, ids = owner.digest(), json.dumps(list(fact_ids))
    connection.execute(
        f"{_INSERT} SELECT ?, id, 'added', created_at FROM facts "
        "WHERE id IN (SELECT value FROM json_each(?)) AND NOT EXISTS "
        "(SELECT 1 FROM history WHERE owner_digest = ? AND fact_id = facts.id) ORDER BY seq",
        (digest, ids, digest),
    )
    _wipe(connection, owner, fact_ids)
    connection.execute(f"{_INSERT} SELECT ?, value, ?, ? FROM json_each(?)", (digest, event, at, ids))


def note_superseded(connection: sqlite3.Connection, old: Fact, new_id: str, at: float, max_bytes: int) -> None:
    """`new_id` takes the place of `old`, whose words stay here; not those of one that was to expire some day.

    Nothing stays of what was superseded longest ago. See `_keep_within` for `max_bytes`.
    """
    key = (old.owner.digest(), old.id)
    if connection.execute(f"SELECT 1 FROM history WHERE {_OF_FACT} LIMIT 1", key).fetchone() is None:
        _note(connection, old, "added", old.created_at)
    connection.execute(
        "INSERT INTO history (owner_digest, fact_id, event, at, metadata) VALUES (?, ?, 'superseded', ?, ?)",
        (*key, at, json.dumps({"by": new_id})),
    )
    if old.expires_at is not None:
        _wipe(connection, old.owner, (old.id,))
    beyond = (
        "SELECT fact_id FROM history WHERE owner_digest = ? AND event = 'superseded' "
        "ORDER BY number DESC LIMIT -1 OFFSET ?"
    )
    too_old = connection.execute(beyond, (old.owner.digest(), MAX_SUPERSEDED_KEPT)).fetchall()
    connection.executemany(f"DELETE FROM history WHERE {_OF_FACT}", [(old.owner.digest(), row[0]) for row in too_old])
    _keep_within(connection, old.owner, max_bytes)


def superseded_of(connection: sqlite3.Connection, owner: Owner) -> tuple[str, ...]:
    """Ids of the owner's facts whose last event is that another took their place."""
    query = (
        "SELECT fact_id FROM history AS one WHERE owner_digest = ? AND event = 'superseded' AND number = "
        "(SELECT max(number) FROM history WHERE owner_digest = one.owner_digest AND fact_id = one.fact_id)"
    )
    return tuple(row[0] for row in connection.execute(query, (owner.digest(),)).fetchall())


def read_history(connection: sqlite3.Connection, owner: Owner, fact_id: str) -> FactHistory:
    """All events that were noted, oldest first; empty for a fact that was never changed and for others' facts."""
    query = f"SELECT event, at, {', '.join(_SAID)} FROM history WHERE {_OF_FACT} ORDER BY number"
    rows = connection.execute(query, (owner.digest(), fact_id)).fetchall()
    return tuple(
        FactEvent(event, at, text, metadata and json.loads(metadata), *more)
        for event, at, text, metadata, *more in rows
    )


def drop_tombstones(connection: sqlite3.Connection, before: float) -> int:
    """Forget also that facts existed whose last event, before this Unix time, was their end. Returns how many."""
    ended = (
        "SELECT owner_digest, fact_id FROM history GROUP BY owner_digest, fact_id "
        "HAVING max(at) < ? AND max(CASE WHEN event IN ('deleted', 'expired') THEN number END) = max(number)"
    )
    found = connection.execute(ended, (before,)).fetchall()
    connection.executemany(f"DELETE FROM history WHERE {_OF_FACT}", found)
    return len(found)


def _keep_within(connection: sqlite3.Connection, owner: Owner, max_bytes: int) -> None:
    """Wipe the owner's oldest words until all that facts said before take at most `max_bytes`."""
    digest = owner.digest()
    row = connection.execute("SELECT bytes FROM history_usage WHERE owner_digest = ?", (digest,)).fetchone()
    surplus = 0 if row is None else row[0] - max_bytes
    if surplus <= 0:
        return
    words = "length(CAST(text AS BLOB)) + ifnull(length(CAST(metadata AS BLOB)), 0)"
    spoken = "owner_digest = ? AND text IS NOT NULL"
    oldest = connection.execute(f"SELECT number, {words} FROM history WHERE {spoken} ORDER BY number", (digest,))
    until = 0
    while surplus > 0 and (row := oldest.fetchone()) is not None:
        until, surplus = row[0], surplus - row[1]
    oldest.close()
    connection.execute(f"UPDATE history SET {_WIPED} WHERE {spoken} AND number <= ?", (digest, until))


def _wipe(connection: sqlite3.Connection, owner: Owner, fact_ids: Sequence[str]) -> None:
    connection.execute(
        f"UPDATE history SET {_WIPED} WHERE owner_digest = ? AND fact_id IN (SELECT value FROM json_each(?))",
        (owner.digest(), json.dumps(list(fact_ids))),
    )


def _note(connection: sqlite3.Connection, fact: Fact, event: str, at: float) -> None:
    said = (fact.text, json.dumps(dict(fact.metadata)), fact.speaker, fact.occurred_at, fact.session_id)
    values = (fact.owner.digest(), fact.id, event, at, *said)
    columns = f"owner_digest, fact_id, event, at, {', '.join(_SAID)}"
    connection.execute(f"INSERT INTO history ({columns}) VALUES ({', '.join('?' * len(values))})", values)
