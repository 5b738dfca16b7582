"""The rows that answer a repeated write: what became of the first one with the same idempotency key.

Knows: the table `idempotency`, inside a caller's transaction. Refuses to know: texts. What is kept are ids and
statuses, so a deleted fact cannot be read from here, and a late retry cannot bring it back.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from inferscale_server.errors import Conflict
from inferscale_server.limits import MAX_IDEMPOTENCY_KEYS
from inferscale_server.types import AddOutcome, FactDraft, IdempotencyKey, Owner

KEPT_S = 24 * 3600.0
"""How long a key is remembered."""
FORGOTTEN = "null"
"""The outcomes of a write whose owner was forgotten since."""


def earlier_outcomes(
    connection: sqlite3.Connection, owner: Owner, key: IdempotencyKey, drafts: Sequence[FactDraft], now: float
) -> tuple[AddOutcome, ...] | None:
    """The outcomes of the write that this one repeats; None when it is the first.

    Texts are taken from `drafts`, and empty when those are not as many as before. Raises Conflict for another body.
    """
    query = "SELECT body_digest, outcomes FROM idempotency WHERE owner_digest = ? AND key = ? AND at > ?"
    row = connection.execute(query, (owner.digest(), key.key, now - KEPT_S)).fetchone()
    if row is None:
        return None
    if row[1] == FORGOTTEN:
        message = "the facts that this request stored were deleted with all of their owner's: use another key"
        raise Conflict(message, code="memories_deleted", param="Idempotency-Key")
    if row[0] != key.body_digest:
        message = "this key was used with another body"
        raise Conflict(message, code="idempotency_mismatch", param="Idempotency-Key")
    kept = json.loads(row[1])
    texts = [draft.text for draft in drafts] if len(drafts) == len(kept) else [""] * len(kept)
    rows = zip(kept, texts, strict=True)
    return tuple(AddOutcome(fact_id, text, status, reason) for (fact_id, status, reason), text in rows)


def keep_outcomes(
    connection: sqlite3.Connection, owner: Owner, key: IdempotencyKey, outcomes: Sequence[AddOutcome], now: float
) -> None:
    """Remember what became of this write, and forget what became of the oldest beyond MAX_IDEMPOTENCY_KEYS."""
    kept = json.dumps([(outcome.id, outcome.status, outcome.reason) for outcome in outcomes])
    statement = "INSERT OR REPLACE INTO idempotency VALUES (?, ?, ?, ?, ?)"  # replaces only what is too old to be found
    connection.execute(statement, (owner.digest(), key.key, key.body_digest, kept, now))
    beyond = "SELECT at FROM idempotency WHERE owner_digest = ? ORDER BY at DESC LIMIT 1 OFFSET ?"
    connection.execute(
        f"DELETE FROM idempotency WHERE owner_digest = ? AND at <= ({beyond})",
        (owner.digest(), owner.digest(), MAX_IDEMPOTENCY_KEYS),
    )


def drop_old_outcomes(connection: sqlite3.Connection, now: float) -> int:
    """Forget keys older than KEPT_S; returns how many."""
    return connection.execute("DELETE FROM idempotency WHERE at <= ?", (now - KEPT_S,)).rowcount


def forget_outcomes_of(connection: sqlite3.Connection, owner: Owner) -> None:
    """Forget what an owner's writes stored, but not that the keys were used: a late retry must bring nothing back."""
    statement = "UPDATE idempotency SET body_digest = '', outcomes = ? WHERE owner_digest = ?"
    connection.execute(statement, (FORGOTTEN, owner.digest()))
