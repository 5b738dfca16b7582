"""The fact store as of one moment, read beside whoever writes it, and copied into a file of its own.

Knows: SQLite's read transactions and online backup. Refuses to know: what is in the tables, and where copies go.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from inferscale_server.database import BUSY_TIMEOUT_MS, inspect
from inferscale_server.errors import InferScaleError, InvalidRequest, StorageFull, StoreCorrupt, Unavailable

PAGES_A_STEP = 1_024
"""Pages copied between two reports of progress: 4 MiB with SQLite's page size."""

NO_PLACE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
)
"""What the system says when a path is wrong, and no later try will do better."""

Tell = Callable[[int, int], None]
"""Who is told how far it is: done, of how many."""


def quiet(done: int, total: int) -> None:
    """A `Tell` that says nothing."""


@contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees `path` as it is now, whatever is committed meanwhile, and cannot change it.

    Raises StoreCorrupt for a file that SQLite cannot read, Unavailable when it cannot be opened or locked.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)) as seen:
            seen.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            seen.execute("BEGIN")
            seen.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # BEGIN alone does not take the snapshot
            yield seen
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise _store_error(path, error) from error


def copy_store(source: Path, target: Path, tell: Tell = quiet, check: Callable[[Path], None] | None = None) -> None:
    """Put `source`, as it is now, at `target` in one step: one checked and fsynced file (mode 0600), or nothing.

    Replaces `target`. `check` may refuse the copy by raising StoreCorrupt with the copy's path in its words. Raises
    InvalidRequest for a place where no file can be made, StoreCorrupt, StorageFull, Unavailable.
    """
    part = target.with_name(f".{target.name[:64]}.{secrets.token_hex(8)}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with snapshot(source) as seen:
            _copy_pages(seen, part, tell)
        _check_copy(part, source, check)
        fsync(part)
        part.replace(target)
        fsync(target.parent)
    except OSError as error:
        if error.errno in NO_PLACE:
            raise InvalidRequest(f"{target} cannot be written: {error.strerror}", param="path") from error
        raise _store_error(target, error) from error
    finally:
        for leftover in (part, part.with_name(part.name + "-journal")):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)


def checkpoint(path: Path) -> None:
    """Bring what is in the write-ahead log of a store that nobody has open into its file. Raises like `snapshot`."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as store:
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise _store_error(path, error) from error


def fsync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_copy(part: Path, source: Path, check: Callable[[Path], None] | None) -> None:
    """What is wrong with the copy was wrong with the store, and that is the file that somebody can mend."""
    try:
        inspect(part)
        if check is not None:
            check(part)
    except StoreCorrupt as error:
        raise StoreCorrupt(str(error).replace(str(part), str(source))) from error


def _copy_pages(seen: sqlite3.Connection, part: Path, tell: Tell) -> None:
    """The source's read transaction stays open throughout, so that a busy writer cannot make the copy start over."""
    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        seen.backup(copy, pages=PAGES_A_STEP, progress=lambda _, left, total: tell(total - left, total), sleep=0)
        copy.execute("PRAGMA journal_mode = DELETE")  # a file in WAL mode would not be complete by itself


def _store_error(path: Path, error: Exception) -> InferScaleError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte: extended codes refine it
    if isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error):  # their words quote the file
        return StoreCorrupt(f"fact store {path} is damaged: it holds text that is none")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreCorrupt(f"fact store {path} is damaged: {error}")
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no space left for {path}")
    return Unavailable(f"{path} cannot be used: {error}")
