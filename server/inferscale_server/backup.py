"""Backup and restore: the truth in one file, and back again.

Knows: which file may be overwritten, and in which order a store is replaced so that a crash leaves the old or the new
one. Refuses to know: who holds the data folder (`restore` needs its caller to), and how a copy is made.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.database import APPLICATION_ID, inspect
from inferscale_server.errors import Conflict, DataFolderError, InvalidRequest, StartupError, StoreCorrupt
from inferscale_server.snapshot import Tell, checkpoint, copy_store, fsync, quiet, snapshot
from inferscale_server.verify import verify

SIDE_FILES = ("-wal", "-shm")
REPLACED = ".replaced"
"""What a replaced store that could not be read is kept under."""

HEADER_BYTES = 100
SMALLEST_BYTES = 512
"""SQLite's smallest page, and more than a lock file of a server ever holds."""
ID_AT = slice(68, 72)
"""Where SQLite's header has the application id."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A file that was written: how many facts it holds, its size in bytes."""

    path: Path
    facts: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Restored:
    """A store that was put in place. `replaced_facts` were there before; a damaged store was kept at `kept`."""

    facts: int
    replaced_facts: int
    kept: Path | None


def back_up(store: Path, target: Path, *, force: bool = False, tell: Tell = quiet) -> Backup:
    """Write the store at `store`, as it is now, into the one file `target`; writers go on meanwhile.

    What is written passes the checks of `restore`. Raises Conflict when `target` exists (with `force`: when it is no
    backup), InvalidRequest for a folder that is not there, StoreCorrupt, StorageFull, Unavailable. In all these cases
    `target` is what it was.
    """
    _check_target(store, target, force)
    copy_store(store, target, tell, check_sound)
    return Backup(target, count_facts(target), target.stat().st_size)


def restore(
    backup: Path, store: Path, derived: Iterable[Path] = (), *, force: bool = False, tell: Tell = quiet
) -> Restored:
    """Put `backup` in the place of `store` and remove `derived` folders. The caller holds the data folder.

    Raises StoreCorrupt for a backup that does not check out, StartupError for a newer schema, Conflict when there are
    facts and not `force`, StorageFull, Unavailable; the store is then what it was. A store that cannot be read is kept
    beside the new one.
    """
    check_backup(backup)
    if backup.resolve() == store.resolve():
        raise InvalidRequest(f"{backup} is the store itself", param="file")
    old = _set_aside(store, force)
    for folder in derived:  # before the swap: no KV of other facts may be found beside the new store
        shutil.rmtree(folder, ignore_errors=True)
    copy_store(backup, store, tell)
    _remove_side_files(store)
    return Restored(count_facts(store), old.facts, old.kept)


def check_backup(path: Path) -> None:
    """Raises StoreCorrupt or StartupError unless `path` is a whole store of a schema that is known here."""
    if not path.is_file():
        raise DataFolderError(f"{path} is not a file")
    if not _is_store(path):
        raise StoreCorrupt(f"{path} is not a backup of InferScale; nothing was changed")
    inspect(path)
    check_sound(path)


def check_sound(path: Path) -> None:
    """Raises StoreCorrupt unless all checks of `verify` pass."""
    broken = verify(path).broken
    if broken:
        raise StoreCorrupt(f"{path} does not check out: {broken[0].name}: {broken[0].reason}; nothing was changed")


def count_facts(store: Path) -> int:
    """How many facts of all owners the store holds. Raises like `snapshot`."""
    with snapshot(store) as seen:
        return int(seen.execute("SELECT count(*) FROM facts").fetchone()[0])


def _check_target(store: Path, target: Path, force: bool) -> None:
    try:
        there = target.parent.is_dir()
    except OSError as error:
        raise InvalidRequest(f"{target.parent} cannot be looked at: {error.strerror}", param="path") from error
    if not there:
        raise InvalidRequest(f"there is no folder {target.parent}", param="path")
    if any(_same_file(target, own) for own in (store, *(_side(store, end) for end in SIDE_FILES))):
        raise InvalidRequest("a store cannot be backed up into itself", param="path")
    if not os.path.lexists(target):
        return
    if not force:
        raise Conflict(f"{target} exists", code="file_exists", param="path")
    if target.is_symlink() or not _is_store(target):  # `force` is for an older backup, not for anybody's file
        raise Conflict(f"{target} exists and is not a backup of InferScale", code="file_exists", param="path")


def _same_file(one: Path, other: Path) -> bool:
    """By any name, hard links too; told without opening it (see `_is_store`)."""
    if one.resolve() == other.resolve():
        return True
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _is_store(path: Path) -> bool:
    # A process that closes a file loses its POSIX locks on it, so a lock file of the server that asks is never opened.
    try:
        if path.stat().st_size < SMALLEST_BYTES:
            return False
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError:
        return False
    return header.startswith(b"SQLite format 3\0") and header[ID_AT] == APPLICATION_ID.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class _Old:
    """The store that is to be replaced: its facts, and where it is kept when they could not be counted."""

    facts: int = 0
    kept: Path | None = None


def _set_aside(store: Path, force: bool) -> _Old:
    """Make the old store one file that a rename replaces whole, or keep it under another name."""
    if not store.exists():
        return _Old()
    try:
        inspect(store)
        facts = count_facts(store)
    except StoreCorrupt:
        return _Old(kept=_keep(store))
    except StartupError:  # of a newer InferScale
        if not force:
            raise
        return _Old(kept=_keep(store))
    if facts and not force:
        raise Conflict(f"{store} holds {facts} facts; --force replaces them", code="facts_exist")
    checkpoint(store)
    return _Old(facts)


def _keep(store: Path) -> Path:
    kept = next(path for n in range(1_000) if not (path := _side(store, f"{REPLACED}{n or ''}")).exists())
    kept.hardlink_to(store)
    log = _side(store, "-wal")
    if log.exists() and log.stat().st_size:
        log.replace(_side(kept, "-wal"))  # SQLite would replay it over the restored file
    fsync(store.parent)
    return kept


def _side(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _remove_side_files(store: Path) -> None:
    for end in SIDE_FILES:
        _side(store, end).unlink(missing_ok=True)
