"""Engine processes end with the server: without this they outlive a killed parent by many minutes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Linux; nothing elsewhere and in the top process.

    Registered as a vLLM general plugin, so it runs first in EngineCore and workers, before the weights load.
    """
    parent = multiprocessing.parent_process()
    if parent is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent.pid:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)
