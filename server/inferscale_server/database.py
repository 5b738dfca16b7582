"""One SQLite file with one writing connection: opening, checking, migrating, transactions.

Knows: pragmas, the schema's history, which SQLite errors mean what. Refuses to know: facts and owners.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from inferscale_server.errors import DataFolderError, RequestError, StartupError, StorageFull, StoreCorrupt, Unavailable
from inferscale_server.reserve import NEARLY_FULL_BYTES, Reserve, free_bytes, reserve_of

APPLICATION_ID = 0x494E5346
BUSY_TIMEOUT_MS = 5_000


def _bytes_of(row: str) -> str:
    """SQL for what counts against an owner's quota. `length` of a text would count characters."""
    return f"length(CAST({row}.text AS BLOB)) + length(CAST({row}.metadata AS BLOB))"


def _words_of(row: str) -> str:
    """SQL for what a row of `history` says, in bytes; none once it was wiped."""
    words = f"length(CAST({row}.text AS BLOB)) + ifnull(length(CAST({row}.metadata AS BLOB)), 0)"
    return f"ifnull({words}, 0)"


MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        # AUTOINCREMENT: a `seq` is never given out again, not even after the newest fact is deleted.
        """CREATE TABLE facts (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            user TEXT NOT NULL,
            sameness BLOB NOT NULL,
            text TEXT NOT NULL,
            speaker TEXT,
            occurred_at REAL,
            session_id TEXT,
            metadata TEXT NOT NULL,
            created_at REAL NOT NULL,
            embedding BLOB NOT NULL,
            UNIQUE (tenant, user, sameness)
        ) STRICT""",
        "CREATE INDEX facts_of_owner ON facts (tenant, user, seq)",
        # Keyed by the owner's digest: an epoch outlives the owner's last fact, a readable user id must not.
        "CREATE TABLE epochs (owner_digest TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        "CREATE TABLE embedder (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), "
        "name TEXT NOT NULL, dimension INTEGER NOT NULL) STRICT",
    ),
    (
        "ALTER TABLE facts ADD COLUMN updated_at REAL NOT NULL DEFAULT 0",
        "ALTER TABLE facts ADD COLUMN expires_at REAL",
        "UPDATE facts SET updated_at = created_at",
        "CREATE INDEX facts_by_expiry ON facts (expires_at) WHERE expires_at IS NOT NULL",
        # What a fact said before; once it is deleted, only that it existed. Keyed like the epochs, and outlives facts.
        """CREATE TABLE history (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            owner_digest TEXT NOT NULL,
            fact_id TEXT NOT NULL,
            event TEXT NOT NULL CHECK (event IN ('added', 'updated', 'deleted', 'expired')),
            at REAL NOT NULL,
            text TEXT,
            metadata TEXT
        ) STRICT""",
        "CREATE INDEX history_of_fact ON history (owner_digest, fact_id, number)",
        # Outcomes as ids and statuses, without texts: a deleted fact cannot be read from here.
        """CREATE TABLE idempotency (
            owner_digest TEXT NOT NULL,
            key TEXT NOT NULL,
            body_digest TEXT NOT NULL,
            outcomes TEXT NOT NULL,
            at REAL NOT NULL,
            PRIMARY KEY (owner_digest, key)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX idempotency_by_age ON idempotency (at)",
        # Counted by triggers, so that no statement can forget to; a user without facts leaves no name.
        """CREATE TABLE usage (
            tenant TEXT NOT NULL,
            user TEXT NOT NULL,
            facts INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            PRIMARY KEY (tenant, user)
        ) STRICT, WITHOUT ROWID""",
        f"INSERT INTO usage SELECT tenant, user, count(*), sum({_bytes_of('facts')}) FROM facts GROUP BY tenant, user",
        f"""CREATE TRIGGER usage_grows AFTER INSERT ON facts BEGIN
            INSERT INTO usage VALUES (new.tenant, new.user, 1, {_bytes_of("new")})
            ON CONFLICT (tenant, user) DO UPDATE SET facts = facts + 1, bytes = bytes + excluded.bytes;
        END""",
        f"""CREATE TRIGGER usage_shrinks AFTER DELETE ON facts BEGIN
            UPDATE usage SET facts = facts - 1, bytes = bytes - ({_bytes_of("old")})
            WHERE tenant = old.tenant AND user = old.user;
            DELETE FROM usage WHERE tenant = old.tenant AND user = old.user AND facts = 0;
        END""",
        f"""CREATE TRIGGER usage_changes AFTER UPDATE OF text, metadata ON facts BEGIN
            UPDATE usage SET bytes = bytes + ({_bytes_of("new")}) - ({_bytes_of("old")})
            WHERE tenant = new.tenant AND user = new.user;
        END""",
    ),
    (
        # What a change of embedder has made so far. Since schema 3 an `embedding` is one vector or several in a row.
        "CREATE TABLE embeddings_next (id TEXT PRIMARY KEY, embedding BLOB NOT NULL) STRICT, WITHOUT ROWID",
        "CREATE TABLE embedder_next (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), "
        "name TEXT NOT NULL, dimension INTEGER NOT NULL) STRICT",
        """CREATE TRIGGER next_embedding_of_deleted AFTER DELETE ON facts BEGIN
            DELETE FROM embeddings_next WHERE id = old.id;
        END""",
        """CREATE TRIGGER next_embedding_of_rewritten AFTER UPDATE OF text ON facts BEGIN
            DELETE FROM embeddings_next WHERE id = old.id;
        END""",
    ),
    (
        "ALTER TABLE history ADD COLUMN speaker TEXT",
        "ALTER TABLE history ADD COLUMN occurred_at REAL",
        "ALTER TABLE history ADD COLUMN session_id TEXT",
    ),
    (
        "ALTER TABLE facts ADD COLUMN agent_id TEXT",
        "ALTER TABLE facts ADD COLUMN run_id TEXT",
        # The same table with one more kind of event: SQLite cannot change a CHECK.
        """CREATE TABLE history_5 (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            owner_digest TEXT NOT NULL,
            fact_id TEXT NOT NULL,
            event TEXT NOT NULL CHECK (event IN ('added', 'updated', 'deleted', 'expired', 'superseded')),
            at REAL NOT NULL,
            text TEXT,
            metadata TEXT,
            speaker TEXT,
            occurred_at REAL,
            session_id TEXT
        ) STRICT""",
        "INSERT INTO history_5 SELECT number, owner_digest, fact_id, event, at, text, metadata, speaker, occurred_at, "
        "session_id FROM history",
        "DROP TABLE history",
        "ALTER TABLE history_5 RENAME TO history",
        "CREATE INDEX history_of_fact ON history (owner_digest, fact_id, number)",
        "CREATE INDEX history_superseded ON history (owner_digest, number) WHERE event = 'superseded'",
    ),
    (
        # Whose id was it ever? An import asks for each of its facts.
        "CREATE INDEX history_by_fact ON history (fact_id)",
        "CREATE INDEX history_by_age ON history (owner_digest, number) WHERE text IS NOT NULL",
        "CREATE INDEX idempotency_of_owner ON idempotency (owner_digest, at)",
        # Like `usage`, of what facts said before: otherwise updates would be a way around the quota.
        "CREATE TABLE history_usage (owner_digest TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID",
        f"INSERT INTO history_usage SELECT owner_digest, sum({_words_of('history')}) FROM history "
        "WHERE text IS NOT NULL GROUP BY owner_digest",
        f"""CREATE TRIGGER history_grows AFTER INSERT ON history WHEN new.text IS NOT NULL BEGIN
            INSERT INTO history_usage VALUES (new.owner_digest, {_words_of("new")})
            ON CONFLICT (owner_digest) DO UPDATE SET bytes = bytes + excluded.bytes;
        END""",
        f"""CREATE TRIGGER history_shrinks AFTER DELETE ON history WHEN old.text IS NOT NULL BEGIN
            UPDATE history_usage SET bytes = bytes - ({_words_of("old")}) WHERE owner_digest = old.owner_digest;
            DELETE FROM history_usage WHERE owner_digest = old.owner_digest AND bytes = 0;
        END""",
        f"""CREATE TRIGGER history_wiped AFTER UPDATE OF text, metadata ON history BEGIN
            UPDATE history_usage SET bytes = bytes + ({_words_of("new")}) - ({_words_of("old")})
            WHERE owner_digest = new.owner_digest;
            DELETE FROM history_usage WHERE owner_digest = new.owner_digest AND bytes = 0;
        END""",
    ),
)
"""Migration n brings schema n to n + 1. Append only: what has been released is never edited."""

Connect = Callable[..., sqlite3.Connection]
T = TypeVar("T")


class Database:
    """A checked and migrated SQLite file. Thread-safe: one connection behind one lock."""

    def __init__(self, path: Path, connect: Connect = sqlite3.connect, reserve_bytes: int = 0) -> None:
        """Open `path`, creating it (mode 0600) when missing, and keep `reserve_bytes` of its disk for deletes.

        Raises StoreCorrupt (nothing on disk was changed), StartupError for a newer schema, DataFolderError when it
        cannot be read or written.
        """
        self.path = path
        self._lock = threading.Lock()
        self._reserve = Reserve(reserve_of(path), reserve_bytes)
        try:
            _create_private(path)
            inspect(path)
            self._connection = connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise
        except (OSError, sqlite3.Error, RequestError) as error:
            raise DataFolderError(f"fact store {path} cannot be opened for writing: {error}") from error
        self._reserve.keep()

    def _prepare(self) -> None:
        mode = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise DataFolderError(f"fact store {self.path}: its file system does not support SQLite's WAL mode")
        for pragma in (
            "synchronous = FULL",
            "foreign_keys = ON",
            "secure_delete = ON",
            f"busy_timeout = {BUSY_TIMEOUT_MS}",
        ):
            self._connection.execute(f"PRAGMA {pragma}")
        with self.transaction() as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for statement in (line for migration in MIGRATIONS[version:] for line in migration):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: committed (fsynced) when the block ends, rolled back when it raises.

        Raises StorageFull when the disk is full, Unavailable for other errors of disk or lock.
        """
        with self._lock, _translated():
            if self._connection.in_transaction:  # an earlier rollback failed too; it must not leak into this one
                self._connection.execute("ROLLBACK")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        self._reserve.keep()

    def free(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` returns, done in a transaction that gives room back, and may take the reserve to do so.

        `work` is called once more when the disk was full. Raises like `transaction`.
        """
        try:
            with self.transaction() as connection:
                return work(connection)
        except (StorageFull, Unavailable) as error:
            if not self._make_room(error):
                raise _undeleted(error) from error
        try:
            with self.transaction() as connection:
                return work(connection)
        except StorageFull as error:
            raise _undeleted(error) from error
        finally:
            self._checkpoint()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for SELECTs only. Raises Unavailable for errors of disk or lock."""
        with self._lock, _translated():
            yield self._connection

    def compact(self) -> None:
        """Rewrite the file without deleted content and empty the write-ahead log. Raises like `transaction`."""
        try:
            self._vacuum()
        except StorageFull as error:
            try:
                if not self._make_room(error):
                    raise
                self._vacuum()
            except StorageFull as full:
                raise StorageFull("the disk has no room to rewrite the fact store, which is whole") from full
        self._reserve.keep()

    def _vacuum(self) -> None:
        with self._lock, _translated():
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _make_room(self, error: RequestError) -> bool:
        """Give the reserve back to a full disk; some say so with an error of their own, such as one of the log."""
        full = isinstance(error, StorageFull) or free_bytes(self.path.parent) < NEARLY_FULL_BYTES
        if not full or not self._reserve.give_back():
            return False
        self._checkpoint()
        return True

    def _checkpoint(self) -> None:
        """Bring the log into the file and cut it off, if that can be done now: it is room too."""
        with self._lock, suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close the connection; harmless when called twice."""
        with self._lock:
            self._connection.close()

    def _roll_back(self) -> None:
        if not self._connection.in_transaction:  # SQLite has rolled back by itself
            return
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return  # the first error is the one to report; the next transaction tries again


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _request_error(error) from error
    except UnicodeDecodeError as error:  # SQLite's own words, about a name in the file that is no text any more
        raise _damaged() from error


def _damaged() -> Unavailable:
    return Unavailable("the fact store is damaged", code="store_corrupt")


def _undeleted(error: RequestError) -> RequestError:
    """The same, in words that fit a delete."""
    if isinstance(error, StorageFull):
        return StorageFull("the disk that holds the fact store is full; nothing was deleted")
    return error


def _request_error(error: sqlite3.DatabaseError) -> Exception:
    """What a caller can act on; errors that only a bug can cause pass unchanged."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the low byte: extended codes refine it
    if code == sqlite3.SQLITE_FULL:
        return StorageFull("the disk that holds the fact store is full; nothing was stored")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged()
    if "decode to UTF-8" in str(error):  # Python's complaint about a text; it has no code
        return _damaged()
    if code in _PASSING:
        return Unavailable(f"the fact store cannot be used now: {error}")
    return error


_PASSING = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)


def _create_private(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def inspect(path: Path) -> None:
    """Check an existing file through a connection that cannot change it. Raises StoreCorrupt or StartupError."""
    log = path.with_name(path.name + "-wal")
    # Without a log nobody is writing: `immutable` then spares even the side files that a plain reader creates.
    options = "mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)) as connection:
        connection.text_factory = _readable
        try:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            application = connection.execute("PRAGMA application_id").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if _is_corruption(error):
                raise StoreCorrupt(f"fact store {path} is damaged: {error}; nothing was changed") from error
            raise
        except UnicodeDecodeError as error:  # SQLite quotes the file in its error
            raise StoreCorrupt(f"fact store {path} is damaged: its schema is no text; nothing was changed") from error
    if verdict != "ok":
        raise StoreCorrupt(f"fact store {path} is damaged: {_first_line(verdict)}; nothing was changed")
    if (tables or version) and application != APPLICATION_ID:
        raise StoreCorrupt(f"{path} is a SQLite file of another program; nothing was changed")
    if version > len(MIGRATIONS):
        raise StartupError(f"fact store {path} has schema {version}, newer than this InferScale's {len(MIGRATIONS)}")


def _readable(raw: bytes) -> str:
    """A damaged file's texts need not be UTF-8, and SQLite's verdict quotes them."""
    return raw.decode("utf-8", "replace")


def _is_corruption(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    # SQLITE_ERROR here means a schema that does not parse: the statements themselves are fixed and valid.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def _first_line(verdict: str) -> str:
    return " ".join(verdict.split())[:200]
