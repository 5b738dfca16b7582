"""How far something long is: a spinner and a clock on a terminal; in a CI log or a container one plain line a stage,
and now and then one that says that it still goes on.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.text import Text

STILL = "still "
"""Begins the lines that only say that what was told last goes on."""
SILENT_S = 30.0
"""A log is silent for so long at most."""
LOOK_S = 1.0

_COUNT = re.compile(r"\d+ of \d+")
_ASIDE = re.compile(r" \([^()]*\)$")

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Running:
    """What a terminal shows of a stage: drawn again and again, so that its seconds run."""

    text: str
    began_s: float
    clock: Clock

    def __rich__(self) -> Text:
        return Text(f"{self.text}, {self.clock() - self.began_s:.0f} s")


class Progress:
    """Tells stages, with the seconds since the start before each. `clock` gives seconds."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._status = console.status("starting")
        self._began = self._told = clock()
        self._stage = ""
        self._doing = "starting"
        self._over = False

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        else:
            threading.Thread(target=self._beat, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stage(self, text: str) -> None:
        """This begins now; stays on the screen."""
        self._doing = text
        self._line(text)
        self._status.update(Running(text, self._began, self._clock))

    def tell(self, text: str) -> None:
        """This happens now. Shown on a terminal as it is; in a log, once for all texts that are alike up to a colon and
        but for a count like `3 of 20`."""
        self._doing = text
        if self._console.is_terminal:
            self._status.update(Text(text))
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

    def still(self) -> None:
        """Say that it goes on, if nothing was said for SILENT_S and it is not over."""
        if not self._over and self._clock() - self._told >= SILENT_S:
            self._line(STILL + _ASIDE.sub("", self._doing))

    def close(self) -> None:
        """Leave the terminal as it was. Harmless when called twice, and in a signal handler: takes no lock of ours."""
        self._over = True
        self._status.stop()

    def _beat(self) -> None:
        while not self._over:
            time.sleep(LOOK_S)
            self.still()

    def _line(self, text: str) -> None:
        self._told = self._clock()
        seconds = f"{self._told - self._began:5.1f} s"
        self._console.print(f"{seconds}  {text}", markup=False, highlight=False, soft_wrap=True)
