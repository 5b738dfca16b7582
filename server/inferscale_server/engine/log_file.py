"""Where vLLM's words go: into a file, so that the terminal keeps ours.

Descriptors are turned and not loggers: native libraries, progress bars and the engine's processes write past logging.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from inferscale_server.errors import DataFolderError

STARTS_KEPT = 5
"""Logs of so many starts are kept, this one's among them: `.1` is that of the start before, and so on."""

_FAULT = re.compile(r"^(?:\(.*?\) ERROR .*?\] *)?([\w.]+(?:Error|Exception)): (.+)", re.MULTILINE)
"""A traceback's last line, bare or in vLLM's frame for errors; warnings may name errors that did not happen."""
_ECHO = "Engine core initialization failed"


@contextmanager
def diverted(path: Path) -> Iterator[TextIO]:
    """Send file descriptors 1 and 2, also those of processes started from now on, into `path`; yields the terminal.

    Not undone: libraries talk on when the process ends. An error that leaves the block finds `sys.stderr` on the
    terminal. Raises DataFolderError when the file cannot be written.
    """
    try:
        descriptor = _open(path)
    except OSError as error:
        raise DataFolderError(f"log {path} cannot be written: {error.strerror}") from error
    terminal = os.fdopen(os.dup(2), "w", buffering=1, errors="replace")
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    try:
        yield terminal
    except BaseException:
        sys.stderr = terminal
        raise


def keep_heard() -> None:
    """Undo what libraries do to the loggers of others while they load: what this package has to say is written."""
    logging.disable(logging.NOTSET)
    ours = logging.getLogger(__name__.split(".")[0])
    if ours.getEffectiveLevel() > logging.WARNING:  # of the root logger, which is not ours to set
        ours.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.split(".")[0] == ours.name and isinstance(logger, logging.Logger):
            logger.disabled = False


def first_fault(path: Path) -> str | None:
    """What the log's first error says: later ones only repeat it. None when it holds none or cannot be read."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        return None
    return next((f"{kind}: {said.strip()}" for kind, said in _FAULT.findall(text) if _ECHO not in said), None)


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number in range(STARTS_KEPT - 1, 0, -1):
        earlier = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if earlier.exists():
            earlier.replace(path.with_name(f"{path.name}.{number}"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600)
