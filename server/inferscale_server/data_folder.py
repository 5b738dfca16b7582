"""The folder a server keeps everything in, held by one process at a time.

Knows: how to create, probe and lock the folder, and who says to hold it. Refuses to know: what lies in it.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from inferscale_server.errors import DataFolderError

LOCK_NAME = "lock"
MAX_LOCK_BYTES = 4_096
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that mean all of this machine's, and the one to call from here."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a folder. `url` is None for a command that serves nothing."""

    pid: int
    url: str | None = None


class DataFolder:
    """A held data folder. The kernel lets go of it when this process ends, however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def hold(cls, path: Path, url: str | None = None) -> DataFolder:
        """Create `path` (mode 0700) if it is missing, lock it for this process, and leave word of who serves it where.

        Hold a path once in a process and pass it on: the lock is the process's, so that a second hold succeeds, and
        its release lets go of both. Raises DataFolderError when it is not a folder, cannot be written, or another
        process holds it.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderError(f"data folder {path} cannot be used: {error.strerror}") from error
        try:
            # A record lock, not flock: forked engine processes can outlive a killed server and must not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise DataFolderError(f"data folder {path} is in use by another server (or cannot be locked)") from error
        _leave_word(descriptor, Holder(os.getpid(), url))
        return cls(path, descriptor)

    @staticmethod
    def holder(path: Path) -> Holder | None:
        """Who said last to hold `path`; None when nobody did or it cannot be read.

        Ask only after `hold` was refused: what a dead holder wrote stays, and a process that holds the folder itself
        would lose its lock here (POSIX drops a file's locks when any descriptor of it is closed).
        """
        try:
            with (path / LOCK_NAME).open("rb") as file:
                return Holder(**json.loads(file.read(MAX_LOCK_BYTES)))
        except (OSError, ValueError, TypeError):
            return None

    def announce(self, url: str) -> None:
        """Leave word of where this process serves from now on."""
        if self._descriptor is not None:
            _leave_word(self._descriptor, Holder(os.getpid(), url))

    def release(self) -> None:
        """Let another server have the folder; harmless when called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> DataFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def server_url(host: str, port: int) -> str:
    """Where commands on this machine reach a server that listens on `host` and `port`."""
    host = EVERYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _leave_word(descriptor: int, holder: Holder) -> None:
    with suppress(OSError):  # a full disk is no reason not to serve what is on it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
