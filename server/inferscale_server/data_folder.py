"""The folder a server keeps everything in, and the fact file, which may lie elsewhere: held by one process at a time.

Knows: how to create, probe and lock both, and who says to hold them. Refuses to know: what lies in them.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from inferscale_server.errors import DataFolderError, FactsInUse

LOCK_NAME = "lock"
FACTS_LOCK = ".lock"
"""Ends the name of the lock beside a fact file. Held wherever the file lies: another server may name it by its path."""
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

    def __init__(self, path: Path, descriptors: Sequence[int]) -> None:
        self.path = path
        self._descriptors = tuple(descriptors)

    @classmethod
    def hold(cls, path: Path, url: str | None = None, facts: Path | None = None) -> DataFolder:
        """Create `path` (mode 0700) if it is missing, lock it for this process, and leave word of who serves it where.

        The same for the fact file `facts`, by a lock beside it. Hold a path once in a process and pass it on: the lock
        is the process's, so that a second hold succeeds, and its release lets go of both. Raises DataFolderError when
        it is not a folder, cannot be written, or another process holds it, FactsInUse when one holds the facts alone.
        """
        descriptor = _open_lock(path / LOCK_NAME, f"data folder {path}")
        if not _lock(descriptor):
            os.close(descriptor)
            raise DataFolderError(f"data folder {path} is in use by another server (or cannot be locked)")
        folder = cls(path, [descriptor])
        try:
            if facts is not None:
                folder._hold_facts(facts)
        except BaseException:
            folder.release()
            raise
        for held in folder._descriptors:
            _leave_word(held, Holder(os.getpid(), url))
        return folder

    def _hold_facts(self, facts: Path) -> None:
        real = facts.resolve()  # two servers may come to one file by different links
        descriptor = _open_lock(real.with_name(real.name + FACTS_LOCK), f"the folder of fact store {facts}")
        if not _lock(descriptor):
            holder = _word(descriptor)
            os.close(descriptor)
            raise FactsInUse(f"fact store {facts} is in use by {_named(holder)}, which has another data folder")
        self._descriptors += (descriptor,)

    @staticmethod
    def holder(path: Path) -> Holder | None:
        """Who said last to hold `path`; None when nobody did or it cannot be read.

        Ask only after `hold` was refused: what a dead holder wrote stays, and a process that holds the folder itself
        would lose its lock here (POSIX drops a file's locks when any descriptor of it is closed).
        """
        try:
            with (path / LOCK_NAME).open("rb") as file:
                return _word(file.fileno())
        except OSError:
            return None

    def announce(self, url: str) -> None:
        """Leave word of where this process serves from now on."""
        for descriptor in self._descriptors:
            _leave_word(descriptor, Holder(os.getpid(), url))

    def release(self) -> None:
        """Let another server have the folder; harmless when called twice."""
        descriptors, self._descriptors = self._descriptors, ()
        for descriptor in descriptors:
            os.close(descriptor)

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


def _open_lock(path: Path, what: str) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataFolderError(f"{what} cannot be used: {error.strerror}") from error


def _lock(descriptor: int) -> bool:
    """A record lock, not flock: forked engine processes can outlive a killed server and must not inherit it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _word(descriptor: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(descriptor, MAX_LOCK_BYTES, 0)))
    except (OSError, ValueError, TypeError):
        return None


def _named(holder: Holder | None) -> str:
    if holder is None:
        return "another process"
    return f"process {holder.pid}" if holder.url is None else f"the server at {holder.url} (process {holder.pid})"


def _leave_word(descriptor: int, holder: Holder) -> None:
    with suppress(OSError):  # a full disk is no reason not to serve what is on it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
