"""How far something long is: a spinner on a terminal, one plain line a stage in a CI log or a container."""

from __future__ import annotations

import re
import time
from types import TracebackType

from rich.console import Console

_COUNT = re.compile(r"\d+ of \d+")


class Progress:
    """Tells stages, with the seconds since the start before each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = console.status("starting")
        self._began = time.monotonic()
        self._stage = ""

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stage(self, text: str) -> None:
        """This begins now; stays on the screen."""
        self._line(text)
        self._status.update(text)

    def tell(self, text: str) -> None:
        """This happens now. Shown on a terminal as it is; in a log, once for all texts that are alike up to a colon and
        but for a count like `3 of 20`."""
        if self._console.is_terminal:
            self._status.update(text)
        elif (stage := _COUNT.sub("", text.split(":")[0])) != self._stage:
            self._stage = stage
            self._line(text)

    def ready(self, text: str) -> None:
        """It is done, and this came out."""
        self.close()
        self._line(text)

    def say(self, text: str) -> None:
        """This happened, after it was ready; stays on the screen."""
        self._line(text)

    def close(self) -> None:
        """Leave the terminal as it was. Harmless when called twice."""
        self._status.stop()

    def _line(self, text: str) -> None:
        seconds = f"{time.monotonic() - self._began:5.1f} s"
        self._console.print(f"{seconds}  {text}", markup=False, highlight=False, soft_wrap=True)
