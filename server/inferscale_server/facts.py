"""The truth: every owner's facts with their embeddings, in one SQLite file.

Knows: what is stored, in which order, and what counts as the same fact. Refuses to know: models, vectors' meaning,
KV. Everything else in a data folder can be rebuilt from here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import sqlite3
import time
import unicodedata
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferscale_server.database import Connect, Database
from inferscale_server.errors import ConfigError, InvalidRequest, StorageFull, StoreCorrupt
from inferscale_server.limits import MAX_FACTS_PER_OWNER, MAX_PAGE
from inferscale_server.types import AddOutcome, Fact, FactDraft, FactPage, Owner

COLUMNS = "id, tenant, user, seq, text, speaker, occurred_at, session_id, metadata, created_at"
MAX_SEQ = 2**63 - 1


@dataclass(frozen=True, slots=True, eq=False)
class OwnerVectors:
    """One owner's embeddings, oldest fact first. `matrix` is float32 [facts, dimension], row i belongs to id i."""

    owner: Owner
    fact_ids: tuple[str, ...]
    matrix: npt.NDArray[np.float32]


class FactStore:
    """Facts of all owners. Synchronous and thread-safe; every write is durable (fsynced) when it returns.

    Every method raises Unavailable when disk or lock fail; writes also StorageFull. Neither leaves half a write.
    """

    def __init__(
        self, path: Path, *, max_facts_per_owner: int = MAX_FACTS_PER_OWNER, connect: Connect = sqlite3.connect
    ) -> None:
        """Open or create the store. Raises StoreCorrupt, StartupError (newer schema) or DataFolderError."""
        self._database = Database(path, connect)
        self._max_facts_per_owner = max_facts_per_owner

    def add(
        self, owner: Owner, drafts: Sequence[FactDraft], embeddings: npt.NDArray[np.float32]
    ) -> tuple[AddOutcome, ...]:
        """Store the drafts in one transaction; row i of `embeddings` (float32 [drafts, dimension]) is draft i's.

        A draft whose text (after NFC and strip) and speaker the owner has already is a duplicate, also within this
        call. Raises StorageFull, with nothing stored, when the owner would exceed the limit.
        """
        assert embeddings.dtype == np.float32 and embeddings.ndim == 2, (embeddings.dtype, embeddings.shape)
        assert len(drafts) == len(embeddings), (len(drafts), len(embeddings))
        with self._database.transaction() as connection:
            outcomes = tuple(
                _add_one(connection, owner, draft, row) for draft, row in zip(drafts, embeddings, strict=True)
            )
            stored = sum(outcome.status == "stored" for outcome in outcomes)
            if stored and _count(connection, owner) > self._max_facts_per_owner:
                raise StorageFull(f"a user can have {self._max_facts_per_owner} facts; nothing was stored")
        return outcomes

    def get(self, owner: Owner, fact_id: str) -> Fact | None:
        """The owner's fact, or None: another owner's fact looks exactly like none."""
        return self.get_many(owner, (fact_id,)).get(fact_id)

    def get_many(self, owner: Owner, fact_ids: Iterable[str]) -> dict[str, Fact]:
        """The owner's facts among `fact_ids`, by id; unknown ids are left out."""
        wanted = json.dumps(list(fact_ids))
        where = "tenant = ? AND user = ? AND id IN (SELECT value FROM json_each(?))"
        return {fact.id: fact for fact in self._select(where, (owner.tenant, owner.user, wanted))}

    def page(self, owner: Owner, limit: int, cursor: str | None = None) -> FactPage:
        """Up to `limit` facts, oldest first, after `cursor`. Raises InvalidRequest that names limit or cursor."""
        if not 1 <= limit <= MAX_PAGE:
            raise InvalidRequest(f"limit must be 1 to {MAX_PAGE}, not {limit}", param="limit")
        after = 0 if cursor is None else _decode_cursor(cursor)
        where = "tenant = ? AND user = ? AND seq > ? ORDER BY seq LIMIT ?"
        facts = self._select(where, (owner.tenant, owner.user, after, limit + 1))
        more = len(facts) > limit
        return FactPage(facts[:limit], _encode_cursor(facts[limit - 1].seq) if more else None)

    def oldest(self, owner: Owner, n: int) -> tuple[Fact, ...]:
        """The owner's first `n` facts, oldest first; fewer when there are fewer."""
        return self._select("tenant = ? AND user = ? ORDER BY seq LIMIT ?", (owner.tenant, owner.user, n))

    def count(self, owner: Owner) -> int:
        """How many facts the owner has."""
        with self._database.reading() as connection:
            return _count(connection, owner)

    def owners(self) -> tuple[Owner, ...]:
        """Everyone who has at least one fact, by tenant and user."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT DISTINCT tenant, user FROM facts ORDER BY tenant, user").fetchall()
        return tuple(Owner(tenant, user) for tenant, user in rows)

    def vectors(self) -> Iterator[OwnerVectors]:
        """All embeddings, one owner at a time, to rebuild an index. Raises StoreCorrupt for uneven lengths."""
        query = "SELECT id, embedding FROM facts WHERE tenant = ? AND user = ? ORDER BY seq"
        for owner in self.owners():
            with self._database.reading() as connection:
                rows = connection.execute(query, (owner.tenant, owner.user)).fetchall()
            if rows:
                yield OwnerVectors(owner, tuple(row[0] for row in rows), _matrix([row[1] for row in rows]))

    def delete(self, owner: Owner, fact_id: str) -> bool:
        """Delete one fact and bump the owner's epoch, or do nothing and return False when it is not the owner's."""
        statement = "DELETE FROM facts WHERE tenant = ? AND user = ? AND id = ?"
        with self._database.transaction() as connection:
            found = connection.execute(statement, (owner.tenant, owner.user, fact_id)).rowcount > 0
            if found:
                _bump_epoch(connection, owner)
        return found

    def delete_owner(self, owner: Owner) -> tuple[str, ...]:
        """Delete all facts of one owner, return their ids, oldest first. Bumps the epoch even when there are none."""
        with self._database.transaction() as connection:
            who = (owner.tenant, owner.user)
            rows = connection.execute("SELECT id FROM facts WHERE tenant = ? AND user = ? ORDER BY seq", who).fetchall()
            connection.execute("DELETE FROM facts WHERE tenant = ? AND user = ?", who)
            _bump_epoch(connection, owner)
        return tuple(row[0] for row in rows)

    def epoch(self, owner: Owner) -> int:
        """How often something of this owner was deleted; 0 for an unknown owner. Never goes back."""
        query = "SELECT epoch FROM epochs WHERE owner_digest = ?"
        with self._database.reading() as connection:
            row = connection.execute(query, (owner.digest(),)).fetchone()
        return 0 if row is None else int(row[0])

    def epochs(self) -> dict[str, int]:
        """All epochs that are not 0, by `Owner.digest()`."""
        with self._database.reading() as connection:
            return dict(connection.execute("SELECT owner_digest, epoch FROM epochs").fetchall())

    def claim_embedder(self, name: str, dimension: int) -> None:
        """Record which embedder made the vectors, on first use. Raises ConfigError when it was another one."""
        with self._database.transaction() as connection:
            row = connection.execute("SELECT name, dimension FROM embedder").fetchone()
            if row is None:
                connection.execute("INSERT INTO embedder VALUES (1, ?, ?)", (name, dimension))
            elif row != (name, dimension):
                raise ConfigError(
                    f"option 'embedder': value {name!r} ({dimension} dimensions) does not fit the stored facts, "
                    f"which were embedded with {row[0]!r} ({row[1]} dimensions)"
                )

    def compact(self) -> None:
        """Remove the bytes of deleted facts from file and log; needs free disk space of the store's size."""
        self._database.compact()

    def close(self) -> None:
        """Close the file; harmless when called twice."""
        self._database.close()

    def _select(self, where: str, values: tuple[object, ...]) -> tuple[Fact, ...]:
        with self._database.reading() as connection:
            rows = connection.execute(f"SELECT {COLUMNS} FROM facts WHERE {where}", values).fetchall()
        return tuple(_fact(*row) for row in rows)


def _add_one(
    connection: sqlite3.Connection, owner: Owner, draft: FactDraft, row: npt.NDArray[np.float32]
) -> AddOutcome:
    key = (owner.tenant, owner.user, _sameness(draft))
    query = "SELECT id FROM facts WHERE tenant = ? AND user = ? AND sameness = ?"
    known = connection.execute(query, key).fetchone()
    if known is not None:
        return AddOutcome(known[0], draft.text, "duplicate")
    fact_id = uuid.uuid4().hex
    connection.execute(
        "INSERT INTO facts (tenant, user, sameness, id, text, speaker, occurred_at, session_id, metadata, created_at, "
        "embedding) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*key, fact_id, *_columns(draft), time.time(), row.astype("<f4").tobytes()),
    )
    return AddOutcome(fact_id, draft.text, "stored")


def _sameness(draft: FactDraft) -> bytes:
    """What two drafts share when they are the same fact: a hash of normalised text and speaker."""
    parts = [unicodedata.normalize("NFC", draft.text).strip(), draft.speaker]
    return hashlib.sha256(json.dumps(parts).encode()).digest()


def _columns(draft: FactDraft) -> tuple[object, ...]:
    metadata = json.dumps(dict(draft.metadata), allow_nan=False)
    return draft.text, draft.speaker, draft.occurred_at, draft.session_id, metadata


def _fact(
    fact_id: str,
    tenant: str,
    user: str,
    seq: int,
    text: str,
    speaker: str | None,
    occurred_at: float | None,
    session_id: str | None,
    metadata: str,
    created_at: float,
) -> Fact:
    owner = Owner(tenant, user)
    return Fact(fact_id, owner, seq, text, speaker, occurred_at, session_id, json.loads(metadata), created_at)


def _count(connection: sqlite3.Connection, owner: Owner) -> int:
    query = "SELECT count(*) FROM facts WHERE tenant = ? AND user = ?"
    return int(connection.execute(query, (owner.tenant, owner.user)).fetchone()[0])


def _bump_epoch(connection: sqlite3.Connection, owner: Owner) -> None:
    statement = "INSERT INTO epochs VALUES (?, 1) ON CONFLICT (owner_digest) DO UPDATE SET epoch = epoch + 1"
    connection.execute(statement, (owner.digest(),))


def _matrix(rows: list[bytes]) -> npt.NDArray[np.float32]:
    if len({len(row) for row in rows}) != 1 or len(rows[0]) % 4:
        raise StoreCorrupt("the fact store holds embeddings of uneven length; nothing was changed")
    return np.frombuffer(b"".join(rows), dtype="<f4").astype(np.float32).reshape(len(rows), -1)


def _encode_cursor(seq: int) -> str:
    return base64.urlsafe_b64encode(f"after:{seq}".encode()).decode().rstrip("=")


def _decode_cursor(cursor: str) -> int:
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise InvalidRequest("cursor is not one that this server gave out", param="cursor") from error
    match = re.fullmatch(rb"after:([0-9]{1,19})", raw)
    if match is None or int(match[1]) > MAX_SEQ:
        raise InvalidRequest("cursor is not one that this server gave out", param="cursor")
    return int(match[1])
