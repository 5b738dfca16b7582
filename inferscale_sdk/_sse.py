"""Server-sent events, from bytes in any slicing to the text of each event's data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from inferscale_sdk._errors import APIResponseValidationError

MAX_EVENT_BYTES = 16 * 1024 * 1024

# A carriage return at the very end may be the first half of a line end, so it waits for the next piece.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class EventDecoder:
    """Collects lines until a blank one ends an event. Comments and fields other than `data` are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[str] = []

    def push(self, piece: bytes) -> Iterator[str]:
        """The data of each event that `piece` completes. Raises APIResponseValidationError over MAX_EVENT_BYTES."""
        *lines, self._rest = _LINE_END.split(self._rest + piece)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise APIResponseValidationError(f"a stream event is over {MAX_EVENT_BYTES} bytes")
        for line in lines:
            yield from self._take(line)

    def _take(self, line: bytes) -> Iterator[str]:
        if not line and self._lines:
            joined = "\n".join(self._lines)
            self._lines.clear()
            yield joined
        elif line.startswith(b"data:"):
            self._lines.append(line.removeprefix(b"data:").removeprefix(b" ").decode("utf-8", "replace"))
