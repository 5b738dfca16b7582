"""KV files beside the facts that they are of: which do not check out, and which are of facts that are no more.

Knows: where KV files lie and whose facts they name. Refuses to know: who serves them. KV is derived: any file may go.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvHeader, KvIdentity
from inferscale_server.kv_files import read_kv, remove
from inferscale_server.types import Owner

KV_FOLDER = "kv"
"""Below the data folder."""

FILES = "[0-9a-f][0-9a-f]/*.kv"


@dataclass(frozen=True, slots=True)
class KvFiles:
    """What lies in a folder of KV files; `bytes` of all of them."""

    files: int
    bytes: int
    faulty: tuple[Path, ...]
    orphans: tuple[Path, ...]


def kv_files(folder: Path) -> tuple[Path, ...]:
    """All KV files of a folder, unread. To be listed before the facts are looked at: a fact is there before its KV."""
    return tuple(sorted(folder.glob(FILES)))


def look_over(files: tuple[Path, ...], seen: sqlite3.Connection) -> KvFiles:
    """Read the files whole and look their facts up in the store that `seen` shows.

    Files that went meanwhile do not count. Raises sqlite3.Error.
    """
    size = number = 0
    faulty: list[Path] = []
    orphans: list[Path] = []
    for path in files:
        header = _header(path)
        if not path.exists():
            continue
        number, size = number + 1, size + path.stat().st_size
        if header is None:
            faulty.append(path)
        elif any(not _has(seen, header.identity.owner, fact_id) for fact_id in _facts_of(header.identity)):
            orphans.append(path)
    return KvFiles(number, size, tuple(faulty), tuple(orphans))


def sweep(files: tuple[Path, ...], seen: sqlite3.Connection) -> int:
    """Remove what does not check out or is orphaned; returns how many files. Raises sqlite3.Error."""
    found = look_over(files, seen)
    useless = (*found.faulty, *found.orphans)
    remove(useless)
    for path in useless:
        if path.is_dir() and not path.is_symlink():  # nothing of ours, but where only ours belongs
            shutil.rmtree(path, ignore_errors=True)
    return sum(not path.exists() for path in useless)


def _header(path: Path) -> KvHeader | None:
    try:
        return read_kv(path).header
    except KvFileError:
        return None


def _facts_of(identity: KvIdentity) -> Iterator[str]:
    """The facts whose words the file's keys and values hold."""
    if identity.kind == "fact":
        yield identity.name
    yield from (fact.fact_id for fact in identity.behind)


def _has(seen: sqlite3.Connection, owner_digest: str, fact_id: str) -> bool:
    row = seen.execute("SELECT tenant, user FROM facts WHERE id = ?", (fact_id,)).fetchone()
    return row is not None and Owner(row[0], row[1]).digest() == owner_digest
