"""The truth: every owner's facts with their embeddings, in one SQLite file.

Knows: what is stored, in which order, and what counts as the same fact. Refuses to know: models, vectors' meaning,
KV. Everything else in a data folder can be rebuilt from here.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from inferscale_server.cursors import check_limit, cursor_after_seq, cursor_after_user, seq_of, user_of
from inferscale_server.database import Connect, Database
from inferscale_server.errors import ConfigError, StorageFull
from inferscale_server.fact_rows import (
    COLUMNS,
    OwnerVectors,
    add_one,
    bump_epoch,
    bytes_of,
    check_unique,
    end_facts,
    fact_of_row,
    owner_vectors,
    rewrite,
    stored_bytes,
    successors_in,
    supersede,
)
from inferscale_server.filters import Filter
from inferscale_server.history import drop_tombstones, note_update, read_history, superseded_of
from inferscale_server.limits import MAX_BYTES_PER_OWNER, MAX_FACTS_PER_OWNER
from inferscale_server.outcomes import drop_old_outcomes, earlier_outcomes, forget_outcomes_of, keep_outcomes
from inferscale_server.types import (
    AddOutcome,
    Fact,
    FactDraft,
    FactEvent,
    FactHistory,
    FactPage,
    IdempotencyKey,
    Owner,
    Successor,
    UserCount,
    UserPage,
)

SCAN_ROWS = 500
"""Facts read at a stretch: a filtered page over many facts must not keep writers waiting."""
EXPIRED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Expired:
    """Facts of one owner that have been removed because their time had come."""

    owner: Owner
    fact_ids: tuple[str, ...]


class FactStore:
    """Facts of all owners. Synchronous and thread-safe; every write is durable (fsynced) when it returns.

    Every method raises Unavailable when disk or lock fail; writes also StorageFull. Neither leaves half a write.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_facts_per_owner: int = MAX_FACTS_PER_OWNER,
        max_bytes_per_owner: int = MAX_BYTES_PER_OWNER,
        connect: Connect = sqlite3.connect,
        clock: Callable[[], float] = time.time,
        reserve_bytes: int = 0,
    ) -> None:
        """Open or create the store. Raises StoreCorrupt, StartupError (newer schema) or DataFolderError.

        `clock` gives Unix seconds: when things happened, and what has expired. `reserve_bytes`: see `Database`.
        """
        self._database = Database(path, connect, reserve_bytes)
        self._max_facts_per_owner = max_facts_per_owner
        self._max_bytes_per_owner = max_bytes_per_owner
        self.now = clock

    def add(
        self,
        owner: Owner,
        drafts: Sequence[FactDraft],
        embeddings: Sequence[npt.NDArray[np.float32]] | npt.NDArray[np.float32],
        idempotency: IdempotencyKey | None = None,
        successors: Sequence[Successor] = (),
    ) -> tuple[AddOutcome, ...]:
        """Store the drafts in one transaction; row i of `embeddings` is draft i's: float32
        [dimension], or [pieces, dimension] for a long text.

        A draft whose text (after NFC and strip) and speaker the owner has already is a duplicate, also within this
        call; one that has expired already fails. With a key, a repeat stores nothing and returns what the first one
        did. Facts that `successors` names go when the draft that takes their place was stored, each with an outcome
        `superseded` behind those of the drafts; only their history is left. Raises StorageFull when the owner would
        exceed a limit, Conflict for a key that came with another body.
        """
        assert all(one.dtype == np.float32 and one.ndim in (1, 2) for one in embeddings), embeddings
        assert len(drafts) == len(embeddings), (len(drafts), len(embeddings))
        now = self.now()
        with self._database.transaction() as connection:
            if idempotency is not None:
                earlier = earlier_outcomes(connection, owner, idempotency, drafts, now)
                if earlier is not None:
                    return earlier
            rows = zip(drafts, embeddings, strict=True)
            outcomes = tuple(add_one(connection, owner, draft, row, now) for draft, row in rows)
            outcomes += self._supersede(connection, owner, successors_in(outcomes, successors), now)
            if any(outcome.status == "stored" for outcome in outcomes):
                self._check_quota(connection, owner)
            if idempotency is not None:
                keep_outcomes(connection, owner, idempotency, outcomes, now)
        return outcomes

    def keep(self, owner: Owner, idempotency: IdempotencyKey, outcomes: Sequence[AddOutcome]) -> None:
        """Remember what became of a write that was made of several adds."""
        with self._database.transaction() as connection:
            keep_outcomes(connection, owner, idempotency, outcomes, self.now())

    def earlier(
        self, owner: Owner, idempotency: IdempotencyKey, drafts: Sequence[FactDraft]
    ) -> tuple[AddOutcome, ...] | None:
        """What an add with this key has returned, None when there was none. Raises Conflict for another body."""
        with self._database.reading() as connection:
            return earlier_outcomes(connection, owner, idempotency, drafts, self.now())

    def update(self, old: Fact, new: Fact, embedding: npt.NDArray[np.float32] | None, *, stale: bool) -> bool:
        """Replace `old` by `new` (same id and owner), with a new embedding as in `add` unless it is None.

        `stale` bumps the owner's epoch: what was derived from the old fact must not be used any more. False, with
        nothing done, when the fact is gone. Raises Conflict when another fact of the owner says the same.
        """
        assert (old.id, old.owner, old.seq) == (new.id, new.owner, new.seq), (old.id, new.id)
        with self._database.transaction() as connection:
            check_unique(connection, new)
            if not rewrite(connection, new, embedding):
                return False
            note_update(connection, old, new, self._max_bytes_per_owner)
            if bytes_of(new) > bytes_of(old):
                self._check_quota(connection, new.owner)
            if stale:
                bump_epoch(connection, new.owner)
        return True

    def get(self, owner: Owner, fact_id: str) -> Fact | None:
        """The owner's fact, or None: another owner's fact looks exactly like none."""
        return self.get_many(owner, (fact_id,)).get(fact_id)

    def get_many(self, owner: Owner, fact_ids: Iterable[str]) -> dict[str, Fact]:
        """The owner's facts among `fact_ids`, by id; unknown ids are left out."""
        wanted = json.dumps(list(fact_ids))
        where = "tenant = ? AND user = ? AND id IN (SELECT value FROM json_each(?))"
        return {fact.id: fact for fact in self._select(where, (owner.tenant, owner.user, wanted))}

    def page(self, owner: Owner, limit: int, cursor: str | None = None, where: Filter | None = None) -> FactPage:
        """Up to `limit` facts that match and have not expired, oldest first, after `cursor`.

        Raises InvalidRequest that names limit or cursor. Reads in pieces, between which others can write.
        """
        check_limit(limit)
        after, now = seq_of(owner, cursor), self.now()
        rows = limit + 1 if where is None else SCAN_ROWS
        found: list[Fact] = []
        while len(found) <= limit:
            scanned = self._scan(owner, after, rows, now)
            found += [fact for fact in scanned if where is None or where.matches(fact)]
            if len(scanned) < rows:
                break
            after = scanned[-1].seq
        more = len(found) > limit
        return FactPage(tuple(found[:limit]), cursor_after_seq(owner, found[limit - 1].seq) if more else None)

    def history(self, owner: Owner, fact_id: str) -> FactHistory:
        """All events of a fact, oldest first, also of one that is gone; empty when the owner never had it."""
        with self._database.reading() as connection:
            noted = read_history(connection, owner, fact_id)
        fact = self.get(owner, fact_id)
        if fact is None:
            return noted
        said = (fact.text, fact.metadata, fact.speaker, fact.occurred_at, fact.session_id)
        events = noted or (FactEvent("added", fact.created_at, *said),)
        if fact.expires_at is None or not fact.expired(self.now()):
            return events
        ended = tuple(FactEvent(event.event, event.at, None, None) for event in events)  # gone, though not swept yet
        return (*ended, FactEvent("expired", fact.expires_at, None, None))

    def oldest(self, owner: Owner, n: int) -> tuple[Fact, ...]:
        """The owner's first `n` facts, oldest first; fewer when there are fewer. Expired ones too, until swept."""
        return self._select("tenant = ? AND user = ? ORDER BY seq LIMIT ?", (owner.tenant, owner.user, n))

    def count(self, owner: Owner) -> int:
        """How many facts the owner has."""
        query = "SELECT count(*) FROM facts WHERE tenant = ? AND user = ?"
        with self._database.reading() as connection:
            return int(connection.execute(query, (owner.tenant, owner.user)).fetchone()[0])

    def bytes_of(self, owner: Owner) -> int:
        """UTF-8 bytes of the owner's texts and metadata, as the quota counts them."""
        with self._database.reading() as connection:
            return stored_bytes(connection, owner)

    def owners(self) -> tuple[Owner, ...]:
        """Everyone who has at least one fact, by tenant and user."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT tenant, user FROM usage ORDER BY tenant, user").fetchall()
        return tuple(Owner(tenant, user) for tenant, user in rows)

    def users(self, tenant: str, limit: int, cursor: str | None = None, fact_id: str | None = None) -> UserPage:
        """Up to `limit` users of the tenant who have facts, by name; with `fact_id`, the one whose fact it is.

        Raises InvalidRequest for limit or cursor.
        """
        check_limit(limit)
        query = (
            "SELECT user, facts FROM usage WHERE tenant = ?1 AND user > ?2 "
            "AND (?4 IS NULL OR user = (SELECT user FROM facts WHERE id = ?4 AND tenant = ?1)) ORDER BY user LIMIT ?3"
        )
        with self._database.reading() as connection:
            rows = connection.execute(query, (tenant, user_of(tenant, cursor), limit + 1, fact_id)).fetchall()
        users = tuple(UserCount(user, facts) for user, facts in rows[:limit])
        return UserPage(users, cursor_after_user(tenant, users[-1].user) if len(rows) > limit else None)

    def vectors(self) -> Iterator[OwnerVectors]:
        """All embeddings, one owner at a time, to rebuild an index. Raises StoreCorrupt for uneven lengths."""
        query = "SELECT id, embedding FROM facts WHERE tenant = ? AND user = ? ORDER BY seq"
        for owner in self.owners():
            with self._database.reading() as connection:
                rows = connection.execute(query, (owner.tenant, owner.user)).fetchall()
            if rows:
                yield owner_vectors(owner, rows, self._dimension())

    def delete(self, owner: Owner, fact_id: str) -> bool:
        """Delete one fact and bump the owner's epoch, or do nothing and return False when it is not the owner's."""
        return bool(self.delete_many({owner: (fact_id,)})[owner])

    def delete_many(self, doomed: Mapping[Owner, Sequence[str]]) -> dict[Owner, frozenset[str]]:
        """Delete facts of several owners, all or none; returns which there were. Bumps the epochs of their owners.

        Of a fact that was superseded, what is left of it in the history goes.
        """
        query = "SELECT id FROM facts WHERE tenant = ? AND user = ? AND id IN (SELECT value FROM json_each(?))"

        def end(connection: sqlite3.Connection) -> dict[Owner, frozenset[str]]:
            gone: dict[Owner, frozenset[str]] = {}
            for owner, ids in doomed.items():
                rows = connection.execute(query, (owner.tenant, owner.user, json.dumps(list(ids)))).fetchall()
                kept = set(superseded_of(connection, owner)) & set(ids)
                gone[owner] = frozenset(row[0] for row in rows) | kept
                if gone[owner]:
                    end_facts(connection, owner, tuple(gone[owner]), "deleted", self.now())
            return gone

        return self._database.free(end)

    def delete_owner(self, owner: Owner) -> tuple[str, ...]:
        """Delete all facts, superseded ones and idempotency keys of one owner, return the facts' ids, oldest first.

        Bumps the epoch even when there are none.
        """
        query = "SELECT id FROM facts WHERE tenant = ? AND user = ? ORDER BY seq"

        def end(connection: sqlite3.Connection) -> tuple[str, ...]:
            ids = tuple(row[0] for row in connection.execute(query, (owner.tenant, owner.user)).fetchall())
            end_facts(connection, owner, (*ids, *superseded_of(connection, owner)), "deleted", self.now())
            forget_outcomes_of(connection, owner)
            return ids

        return self._database.free(end)

    def expire(self, now: float, owner: Owner | None = None) -> tuple[Expired, ...]:
        """Delete up to EXPIRED_AT_ONCE facts whose time has come, of all owners or of one; bumps their epochs."""
        query = (
            "SELECT tenant, user, id FROM facts WHERE expires_at <= ?1 "
            "AND (?2 IS NULL OR (tenant = ?2 AND user = ?3)) ORDER BY tenant, user, seq LIMIT ?4"
        )
        tenant, user = (None, None) if owner is None else (owner.tenant, owner.user)

        def end(connection: sqlite3.Connection) -> dict[Owner, list[str]]:
            overdue: dict[Owner, list[str]] = {}
            rows = connection.execute(query, (now, tenant, user, EXPIRED_AT_ONCE)).fetchall()
            for of_tenant, of_user, fact_id in rows:
                overdue.setdefault(Owner(of_tenant, of_user), []).append(fact_id)
            for of_owner, ids in overdue.items():
                end_facts(connection, of_owner, ids, "expired", now)
            return overdue

        return tuple(Expired(of_owner, tuple(ids)) for of_owner, ids in self._database.free(end).items())

    def drop_old_outcomes(self, now: float) -> int:
        """Forget idempotency keys that are too old to be asked for; returns how many."""
        return self._database.free(lambda connection: drop_old_outcomes(connection, now))

    def drop_tombstones(self, before: float) -> int:
        """Forget also that facts existed which were deleted before this Unix time; returns how many."""
        return self._database.free(lambda connection: drop_tombstones(connection, before))

    def epoch(self, owner: Owner) -> int:
        """How often something of this owner was deleted or rewritten; 0 for an unknown owner. Never goes back."""
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
            elif row != (name, dimension) and connection.execute("SELECT 1 FROM facts LIMIT 1").fetchone() is None:
                connection.execute("UPDATE embedder SET name = ?, dimension = ?", (name, dimension))
            elif row != (name, dimension):
                raise ConfigError(
                    f"option 'embedder': value {name!r} ({dimension} dimensions) does not fit the stored facts, "
                    f"which were embedded with {row[0]!r} ({row[1]} dimensions); "
                    f"to embed them anew: inferscale reindex --embedder {name}"
                )

    @property
    def database(self) -> Database:
        """The file underneath, for a verb that goes over all facts."""
        return self._database

    def _dimension(self) -> int | None:
        with self._database.reading() as connection:
            row = connection.execute("SELECT dimension FROM embedder").fetchone()
        return None if row is None else int(row[0])

    def compact(self) -> None:
        """Remove the bytes of deleted facts from file and log; needs free disk space of the store's size."""
        self._database.compact()

    def close(self) -> None:
        """Close the file; harmless when called twice."""
        self._database.close()

    def _check_quota(self, connection: sqlite3.Connection, owner: Owner) -> None:
        query = "SELECT facts, bytes FROM usage WHERE tenant = ? AND user = ?"
        facts, size = connection.execute(query, (owner.tenant, owner.user)).fetchone()
        if facts > self._max_facts_per_owner:
            raise StorageFull(f"a user can have {self._max_facts_per_owner} facts; nothing was stored")
        if size > self._max_bytes_per_owner:
            raise StorageFull(
                f"a user can have {self._max_bytes_per_owner} bytes of texts and metadata; nothing was stored"
            )

    def _supersede(
        self, connection: sqlite3.Connection, owner: Owner, new_ids: Mapping[str, str], now: float
    ) -> tuple[AddOutcome, ...]:
        if not new_ids:
            return ()
        query = f"SELECT {COLUMNS} FROM facts WHERE tenant = ? AND user = ? AND id IN (SELECT value FROM json_each(?))"
        rows = connection.execute(query, (owner.tenant, owner.user, json.dumps(list(new_ids)))).fetchall()
        old = {fact.id: fact for fact in (fact_of_row(*row) for row in rows)}
        return supersede(connection, old, new_ids, now, self._max_bytes_per_owner)

    def _scan(self, owner: Owner, after: int, rows: int, now: float) -> tuple[Fact, ...]:
        where = "tenant = ? AND user = ? AND seq > ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY seq LIMIT ?"
        return self._select(where, (owner.tenant, owner.user, after, now, rows))

    def _select(self, where: str, values: tuple[object, ...]) -> tuple[Fact, ...]:
        with self._database.reading() as connection:
            rows = connection.execute(f"SELECT {COLUMNS} FROM facts WHERE {where}", values).fetchall()
        return tuple(fact_of_row(*row) for row in rows)
