"""Room that is kept on the disk for the moment when it is full: deleting needs some, too.

Knows: one file without content. Refuses to know: who needs the room, and when.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 4 * 1024 * 1024
ROOMY = 4
"""Kept again only when the disk has so many times the reserve: else the next write would meet a full disk."""
NEARLY_FULL_BYTES = 1024 * 1024


class Reserve:
    """A file of `size` bytes beside a store. Of size 0: none is made, but one that lies there is given back."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._missing = True

    def keep(self) -> None:
        """Make the file if it is missing and there is room. Never raises: without it the server serves as well."""
        if not self._missing or not self._size:
            return
        if self._path.exists():
            self._missing = False
        elif free_bytes(self._path.parent) >= ROOMY * self._size:
            self._missing = not self._made()

    def give_back(self) -> bool:
        """Remove the file; was there one?"""
        self._missing = True
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def _made(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size)
            finally:
                os.close(descriptor)
        except OSError:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        return True


def reserve_of(store: Path) -> Path:
    """Where the reserve of a store lies. Only a server that has opened the store leaves one there."""
    return store.with_name(store.name + ".reserve")


def free_bytes(folder: Path) -> int:
    """What the disk of `folder` has left for this user; 0 when that cannot be told."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
