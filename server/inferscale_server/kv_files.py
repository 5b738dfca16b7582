"""KV files in their folder: names, temporary files, safe reads, the scan at start. One file a chunk and rank.

Knows: `<folder>/<first two hex>/<stem>.<rank>.kv`. Refuses to know: tensors, whose chunk it is, what may be served.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvFile, KvHeader, pack_header, read_file, read_header

TEMPORARY = ".tmp"
_NAME = re.compile(r"([0-9a-f]{64})\.(\d{1,4})\.kv(\.tmp)?")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file of the scan: what it says about itself, or `fault`, the reason why it does not check out."""

    path: Path
    stem: str
    rank: int
    size: int
    used_at: float
    header: KvHeader | None
    fault: str | None = None


def kv_path(folder: Path, stem: str, rank: int) -> Path:
    """Where one rank's file of a chunk lies."""
    return folder / stem[:2] / f"{stem}.{rank}.kv"


def temporary(path: Path) -> Path:
    """Where a file is written before it is renamed."""
    return path.with_name(path.name + TEMPORARY)


def write_temporary(path: Path, header: KvHeader, parts: Sequence[memoryview]) -> int:
    """Write a whole file beside its place, not yet forced to the disk; returns its bytes. Raises OSError, KvFileError.

    Leaves nothing behind when it fails.
    """
    packed, aside = pack_header(header), temporary(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            for part in (memoryview(packed), *parts):
                _write_all(file.fileno(), part)
    except OSError:
        remove([aside])
        raise
    return len(packed) + sum(part.nbytes for part in parts)


def force(path: Path) -> None:
    """Force a file, written by whichever process, to the disk. Blocks; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_kv(path: Path) -> KvFile:
    """A file that checks out. Raises KvFileError, also where the system cannot read it."""
    try:
        descriptor, size = _open_file(path)
        with open(descriptor, "rb") as file:
            return read_file(file, size)
    except OSError as error:
        raise KvFileError("missing" if isinstance(error, FileNotFoundError) else "unreadable", "no file") from error


def scan(folder: Path) -> Iterator[FoundFile]:
    """Every KV file of the folder, headers checked, payloads unread. Files of a write that was cut short are removed;
    what is not ours is left alone. Raises OSError when the folder cannot be listed."""
    if not folder.is_dir():
        return
    for shelf in sorted(folder.iterdir()):
        if len(shelf.name) == 2 and shelf.is_dir() and not shelf.is_symlink():
            for path in sorted(shelf.iterdir()):
                match = _NAME.fullmatch(path.name)
                if match and match[3]:
                    remove([path])
                elif match:
                    yield _found(path, match[1], int(match[2]))


def remove(paths: Sequence[Path]) -> None:
    """Unlink files; those that are gone already, or cannot be unlinked, are skipped: the scan meets them again."""
    for path in paths:
        with suppress(OSError):
            path.unlink()


def _found(path: Path, stem: str, rank: int) -> FoundFile:
    size, used_at = 0, 0.0
    try:
        descriptor, size = _open_file(path)
        with open(descriptor, "rb") as file:
            used_at = os.fstat(descriptor).st_mtime
            header = read_header(file, size)
    except KvFileError as error:
        return FoundFile(path, stem, rank, size, used_at, None, error.reason)
    except OSError:
        return FoundFile(path, stem, rank, size, used_at, None, "unreadable")
    if header.layout.rank != rank:
        return FoundFile(path, stem, rank, size, used_at, None, "rank")
    return FoundFile(path, stem, rank, size, used_at, header)


def _open_file(path: Path) -> tuple[int, int]:
    """Descriptor and size of a plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise KvFileError("unreadable", "not a plain file")
    return descriptor, status.st_size


def _write_all(descriptor: int, part: memoryview) -> None:
    left = part.cast("B")
    while left:
        left = left[os.write(descriptor, left) :]
