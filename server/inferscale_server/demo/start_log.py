"""What a server writes while it starts: its own words, a line a stage, and vLLM's in a file beside its facts.

Knows: how a stage reads off a terminal, and where the engine's log lies once the data folder is gone. Refuses to know:
processes.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inferscale_server.demo.progress import STILL
from inferscale_server.errors import StartupError

ENGINE_LOG = "engine.log"

_STAGE = re.compile(r" *\d+\.\d s  (\S.*)")
"""A line of `demo.progress.Progress` off a terminal."""


class StartLog:
    """The log `own` of a server, and vLLM's in the server's data folder, if that is known."""

    def __init__(self, own: Path, data: Path | None = None) -> None:
        self._own = own
        self._engine = None if data is None else data / "logs" / ENGINE_LOG
        self._written = 0
        self._lines = 0

    def grew(self) -> bool:
        """Was anything written since this was asked last? That it still goes on does not count: a clock says so."""
        engine = self._engine.stat().st_size if self._engine is not None and self._engine.is_file() else 0
        before, self._written = self._written, engine + sum(map(len, self._told(self._lines_of_own())))
        return self._written != before

    def new_stages(self) -> list[str]:
        """What the server has begun since this was asked last, in order."""
        whole = self._lines_of_own()[:-1]
        lines, self._lines = whole[self._lines :], len(whole)
        return [stage[1].strip() for stage in map(_STAGE.fullmatch, self._told(lines)) if stage is not None]

    def _lines_of_own(self) -> list[str]:
        """The last one may not be whole yet."""
        return self._own.read_text("utf-8", "replace").split("\n") if self._own.is_file() else [""]

    @staticmethod
    def _told(lines: list[str]) -> list[str]:
        stages = (_STAGE.fullmatch(line) for line in lines)
        return [
            line for line, stage in zip(lines, stages, strict=True) if stage is None or not stage[1].startswith(STILL)
        ]

    def last_words(self) -> str:
        """The log's last line that says anything, with its name; what it says of vLLM's log names the kept one."""
        lines = [line.strip() for line in self._own.read_text("utf-8", "replace").splitlines() if line.strip()]
        said = lines[-1] if lines else "nothing"
        if self._engine is not None:
            said = said.replace(str(self._engine), str(self._kept))
        return f"{self._own} ends with: {said}"

    def keep(self) -> None:
        """Copy vLLM's log, if there is one, beside the server's own: the data folder may be thrown away."""
        if self._engine is not None and self._engine.is_file():
            shutil.copyfile(self._engine, self._kept)

    @property
    def _kept(self) -> Path:
        return self._own.parent / ENGINE_LOG


@contextmanager
def log_folder() -> Iterator[Path]:
    """A new folder for a server's logs. It outlives a server that does not come up, whose error names a log in it."""
    folder, kept = Path(tempfile.mkdtemp(prefix="inferscale-logs-")), False
    try:
        yield folder
    except StartupError:
        kept = True
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
