"""Engine processes end with the server: without this they outlive a killed parent by many minutes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

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


def end_at_signals(tidy: Callable[[], None]) -> None:
    """From now on SIGTERM and SIGINT call `tidy` and end this process and all below it, exit code 128 + signal.

    For the time of loading, when nothing is served yet and vLLM would first finish what it is loading.
    """

    def end(number: int, frame: object) -> None:
        tidy()
        end_now(128 + number)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def killed_by(exit_codes: Iterable[int | None]) -> str | None:
    """In words, which signal ended the first of these processes that one did; None when none did.

    Codes are those of `multiprocessing` and `subprocess`: negative for a signal. SIGTERM is not counted: when one
    process of an engine has died, vLLM sends it to the others.
    """
    numbers = (-code for code in exit_codes if code is not None and code < 0 and code != -signal.SIGTERM)
    number = next(numbers, None)
    if number is None:
        return None
    told = f"killed by signal {number}"
    if number == signal.SIGKILL:
        return f"{told}: out of memory?"
    return f"{told} ({signal.strsignal(number) or 'unknown'})"


told_to_stop = threading.Event()
"""Set once the running server was told to stop: a server that ends without it has lost its engine."""


def end_after(seconds: float, code: int) -> None:
    """End this process and all below it in `seconds`, unless it has ended by itself before that."""
    timer = threading.Timer(seconds, end_now, (code,))
    timer.daemon = True
    timer.start()


def end_now(code: int) -> None:
    """Kill every process below this one, and end. What was acknowledged is on disk already."""
    import psutil  # type: ignore[import-untyped]

    for process in psutil.Process().children(recursive=True):
        try:
            # The resource tracker stays: it removes shared memory once we are gone, then ends by itself.
            if not any("resource_tracker" in word for word in process.cmdline()):
                process.kill()
        except psutil.Error:
            continue
    os._exit(code)
