"""The rows of the table `facts`, inside a caller's transaction.

Knows: columns, what counts as the same fact, what a fact weighs. Refuses to know: transactions, and who asks.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import unicodedata
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from inferscale_server.errors import Conflict, StoreCorrupt
from inferscale_server.history import is_known, note_end, note_return, note_superseded
from inferscale_server.types import AddOutcome, Fact, FactDraft, ImportedFact, Owner, Scope, Successor

COLUMNS = (
    "id, tenant, user, seq, text, speaker, occurred_at, session_id, metadata, agent_id, run_id, "
    "created_at, updated_at, expires_at"
)
DUPLICATE = "already stored; time and metadata unchanged"
OVERDUE = "expires_at has passed already"
NEW_ID = "has a new id: its own is taken, was once another user's, or is not one of InferScale's"


@dataclass(frozen=True, slots=True, eq=False)
class OwnerVectors:
    """One owner's embeddings, oldest fact first. `matrix` is float32 [vectors, dimension], row i belongs to id i.

    The id of a fact that is embedded in pieces stands several times in a row.
    """

    owner: Owner
    fact_ids: tuple[str, ...]
    matrix: npt.NDArray[np.float32]


def add_one(
    connection: sqlite3.Connection, owner: Owner, draft: FactDraft, row: npt.NDArray[np.float32], now: float
) -> AddOutcome:
    """Insert one draft with its embedding (see FactStore.add), unless it is a duplicate or has expired already."""
    if draft.expires_at is not None and draft.expires_at <= now:
        return AddOutcome(None, draft.text, "failed", OVERDUE)
    known = _same_fact(connection, owner, _sameness(draft))
    if known is not None:
        return AddOutcome(known, draft.text, "duplicate", DUPLICATE)
    fact = _born(connection, owner, draft, now)
    connection.execute(
        "INSERT INTO facts (id, tenant, user, sameness, text, speaker, occurred_at, session_id, metadata, agent_id, "
        "run_id, created_at, updated_at, expires_at, embedding) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (fact.id, owner.tenant, owner.user, _sameness(fact), *_columns(fact), _packed(row)),
    )
    if not isinstance(draft, ImportedFact):
        return AddOutcome(fact.id, draft.text, "stored")
    note_return(connection, fact)
    return AddOutcome(fact.id, draft.text, "stored", NEW_ID if draft.id not in (None, fact.id) else None)


def _born(connection: sqlite3.Connection, owner: Owner, draft: FactDraft, now: float) -> Fact:
    """The fact that a draft becomes; its `seq` is not known yet."""
    fact_id, created, updated = uuid.uuid4().hex, now, now
    if isinstance(draft, ImportedFact):
        fact_id = draft.id if draft.id is not None and _is_free(connection, owner, draft.id) else fact_id
        created = now if draft.created_at is None else draft.created_at
        updated = created if draft.updated_at is None else draft.updated_at
    said = (draft.text, draft.speaker, draft.occurred_at, draft.session_id, draft.metadata)
    return Fact(fact_id, owner, 0, *said, created, updated, draft.expires_at, draft.agent_id, draft.run_id)


def _is_free(connection: sqlite3.Connection, owner: Owner, fact_id: str) -> bool:
    """Has it the form of our ids (it becomes part of file names), and does or did no other's fact have it?"""
    if len(fact_id) != 32 or not set(fact_id) <= set("0123456789abcdef"):
        return False
    if is_known(connection, fact_id, besides=owner):
        return False
    return connection.execute("SELECT 1 FROM facts WHERE id = ?", (fact_id,)).fetchone() is None


def _same_fact(connection: sqlite3.Connection, owner: Owner, sameness: bytes) -> str | None:
    query = "SELECT id FROM facts WHERE tenant = ? AND user = ? AND sameness = ?"
    row = connection.execute(query, (owner.tenant, owner.user, sameness)).fetchone()
    return None if row is None else str(row[0])


def check_unique(connection: sqlite3.Connection, fact: Fact) -> None:
    """Raises Conflict when another fact of the owner says the same."""
    if _same_fact(connection, fact.owner, _sameness(fact)) not in (None, fact.id):
        raise Conflict("another fact of this user says the same", code="duplicate_fact", param="text")


def rewrite(connection: sqlite3.Connection, fact: Fact, embedding: npt.NDArray[np.float32] | None) -> bool:
    """Bring the row of this id up to `fact`; an embedding of None stays as it is. False when there is no such row."""
    changed = connection.execute(
        "UPDATE facts SET sameness = ?, text = ?, speaker = ?, occurred_at = ?, session_id = ?, metadata = ?, "
        "agent_id = ?, run_id = ?, created_at = ?, updated_at = ?, expires_at = ?, embedding = ifnull(?, embedding) "
        "WHERE tenant = ? AND user = ? AND id = ?",
        (
            _sameness(fact),
            *_columns(fact),
            None if embedding is None else _packed(embedding),
            *(fact.owner.tenant, fact.owner.user, fact.id),
        ),
    )
    return changed.rowcount > 0


def end_facts(
    connection: sqlite3.Connection,
    owner: Owner,
    fact_ids: Sequence[str],
    event: Literal["deleted", "expired"],
    at: float,
) -> None:
    """Facts of this owner go; that they existed stays."""
    note_end(connection, owner, fact_ids, event, at)
    where = "tenant = ? AND user = ? AND id IN (SELECT value FROM json_each(?))"
    connection.execute(f"DELETE FROM facts WHERE {where}", (owner.tenant, owner.user, json.dumps(list(fact_ids))))
    bump_epoch(connection, owner)


def supersede(
    connection: sqlite3.Connection, old: Mapping[str, Fact], new_ids: Mapping[str, str], at: float, max_bytes: int
) -> tuple[AddOutcome, ...]:
    """Facts go from here, and from every recall, because `new_ids` of them say otherwise; their history stays.

    `old` by id; `new_ids` from an old fact's id to its successor's. History's words take at most `max_bytes` of each
    owner. One outcome for each old fact.
    """
    for fact in old.values():
        note_superseded(connection, fact, new_ids[fact.id], at, max_bytes)
        connection.execute("DELETE FROM facts WHERE id = ?", (fact.id,))
    if old:
        bump_epoch(connection, next(iter(old.values())).owner)
    return tuple(AddOutcome(one.id, one.text, "superseded", f"by {new_ids[one.id]}") for one in old.values())


def successors_in(outcomes: Sequence[AddOutcome], successors: Sequence[Successor]) -> dict[str, str]:
    """From the id of each fact that goes to the id of the one that takes its place, as far as that was stored."""
    taken = ((one.old_id, outcomes[one.draft]) for one in successors)
    return {old: new.id for old, new in taken if new.status == "stored" and new.id is not None}


def _sameness(fact: Fact | FactDraft) -> bytes:
    """What two facts share when they are the same: a hash of normalised text and speaker, and of their scope."""
    scope = Scope(fact.agent_id, fact.run_id)
    parts = [unicodedata.normalize("NFC", fact.text).strip(), fact.speaker]
    if scope != Scope():  # the same words in another scope are another fact: each scope can be deleted by itself
        parts += [scope.agent_id, scope.run_id]
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _columns(fact: Fact) -> tuple[object, ...]:
    said = (fact.text, fact.speaker, fact.occurred_at, fact.session_id, _packed_metadata(fact))
    return (*said, fact.agent_id, fact.run_id, fact.created_at, fact.updated_at, fact.expires_at)


def _packed_metadata(fact: Fact) -> str:
    return json.dumps(dict(fact.metadata), allow_nan=False)


def _packed(row: npt.NDArray[np.float32]) -> bytes:
    return row.astype("<f4").tobytes()


def bytes_of(fact: Fact) -> int:
    """What the fact counts against the owner's quota; the triggers in database.py count the same."""
    return len(fact.text.encode()) + len(_packed_metadata(fact).encode())


def fact_of_row(
    fact_id: str,
    tenant: str,
    user: str,
    seq: int,
    text: str,
    speaker: str | None,
    occurred_at: float | None,
    session_id: str | None,
    metadata: str,
    agent_id: str | None,
    run_id: str | None,
    created_at: float,
    updated_at: float,
    expires_at: float | None,
) -> Fact:
    """The fact of a row of COLUMNS."""
    said = (text, speaker, occurred_at, session_id, json.loads(metadata))
    return Fact(fact_id, Owner(tenant, user), seq, *said, created_at, updated_at, expires_at, agent_id, run_id)


def bump_epoch(connection: sqlite3.Connection, owner: Owner) -> None:
    """What was derived from this owner's facts before is stale from now on."""
    statement = "INSERT INTO epochs VALUES (?, 1) ON CONFLICT (owner_digest) DO UPDATE SET epoch = epoch + 1"
    connection.execute(statement, (owner.digest(),))


def stored_bytes(connection: sqlite3.Connection, owner: Owner) -> int:
    """What the owner's facts count against the quota, all together."""
    query = "SELECT bytes FROM usage WHERE tenant = ? AND user = ?"
    row = connection.execute(query, (owner.tenant, owner.user)).fetchone()
    return 0 if row is None else int(row[0])


def owner_vectors(owner: Owner, rows: list[tuple[str, bytes]], dimension: int | None) -> OwnerVectors:
    """Of rows (id, embedding). Without a recorded dimension, the shortest embedding has one vector."""
    size = 4 * (dimension or max(min(len(row[1]) for row in rows) // 4, 1))
    if any(len(row[1]) % size or not row[1] for row in rows):
        raise StoreCorrupt("the fact store holds embeddings of uneven length; nothing was changed")
    ids = tuple(fact_id for fact_id, raw in rows for _ in range(len(raw) // size))
    matrix = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f4").astype(np.float32).reshape(len(ids), -1)
    return OwnerVectors(owner, ids, matrix)
