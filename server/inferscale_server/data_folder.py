"""The folder a server keeps everything in, held by one server at a time.

Knows: how to create, probe and lock the folder. Refuses to know: what lies in it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from inferscale_server.errors import DataFolderError

LOCK_NAME = "lock"


class DataFolder:
    """A held data folder. The kernel lets go of it when this process ends, however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def hold(cls, path: Path) -> DataFolder:
        """Create `path` (mode 0700) if it is missing and lock it for this process.

        Raises DataFolderError when it is not a folder, cannot be written, or another process holds it.
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
        return cls(path, descriptor)

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
