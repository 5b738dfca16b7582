"""Gives back what deleted facts left: old tombstones, expired idempotency rows, free pages, orphaned KV files.

Knows: for how long which trace is kept. Refuses to know: who asks, and on which thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from inferscale_server.facts import FactStore
from inferscale_server.orphans import kv_files, sweep
from inferscale_server.snapshot import snapshot

DAY_S = 86_400.0
TOMBSTONE_DAYS = 30
"""For how long it stays known, without words, that a deleted fact existed."""

STORE_FILES = ("", "-wal")


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was freed: bytes of store and log before and after, rows and KV files removed."""

    bytes_before: int
    bytes_after: int
    tombstones: int
    idempotency_rows: int
    kv_files: int


def clean(store: FactStore, path: Path, kv: Path | None = None, tombstone_days: float = TOMBSTONE_DAYS) -> Cleaned:
    """Remove what is past its time, then rewrite the file at `path` without free pages and empty its log.

    `kv` is the folder of KV files. Writers wait meanwhile, seconds for a large store. Needs free disk space of the
    store's size; raises StorageFull or Unavailable, and the store is then whole.
    """
    before = store_bytes(path)
    tombstones = store.drop_tombstones(store.now() - tombstone_days * DAY_S)
    rows = store.drop_old_outcomes(store.now())
    swept = 0 if kv is None else sweep_kv(path, kv)
    store.compact()
    return Cleaned(before, store_bytes(path), tombstones, rows, swept)


def sweep_kv(path: Path, kv: Path) -> int:
    """Remove KV files that do not check out or are of facts that are no more; returns how many."""
    files = kv_files(kv)  # before the facts are looked at: a fact is there before its KV
    with snapshot(path) as seen:
        return sweep(files, seen)


def store_bytes(path: Path) -> int:
    """Bytes of a store's file and its write-ahead log."""
    files = (path.with_name(path.name + end) for end in STORE_FILES)
    return sum(file.stat().st_size for file in files if file.exists())
