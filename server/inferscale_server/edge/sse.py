"""Server-sent events of a chat stream: which one is the last, and how provenance gets into it.

Pure text in, text out. Events are amended, never held back: the last chunk is known when it comes (the usage chunk with
empty `choices`, else the chunk with the last outstanding finish_reason).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

PREFIX = "data: "
DONE = "[DONE]"


class LastChunk:
    """Watches one stream. `provenance` is called once, when the last chunk is there."""

    def __init__(self, choices: int, include_usage: bool, provenance: Callable[[], Mapping[str, Any]]) -> None:
        self._outstanding = choices
        self._include_usage = include_usage
        self._provenance = provenance

    def amend(self, event: str) -> str:
        """The event to send: the same, or the last chunk with `inferscale` in it."""
        if not self._interesting(event):
            return event
        chunk = parse_event(event)
        if chunk is None or "error" in chunk:
            return event
        choices = chunk.get("choices") or []
        self._outstanding -= sum(choice.get("finish_reason") is not None for choice in choices)
        last = not choices if self._include_usage else self._outstanding == 0 and bool(choices)
        if not last:
            return event
        return f"{PREFIX}{json.dumps(chunk | {'inferscale': self._provenance()}, ensure_ascii=False)}\n\n"

    @staticmethod
    def _interesting(event: str) -> bool:
        """Cheap look before parsing: most chunks hold a piece of text and nothing else."""
        return '"finish_reason":"' in event or '"choices":[]' in event


def parse_event(event: str) -> dict[str, Any] | None:
    """The JSON object of a `data:` event; None for [DONE], comments and anything else."""
    text = event.strip()
    if not text.startswith(PREFIX.strip()):
        return None
    text = text[len(PREFIX.strip()) :].strip()
    if text == DONE:
        return None
    parsed = json.loads(text)
    return parsed if isinstance(parsed, dict) else None


def is_head(event: str) -> bool:
    """Does this event only open the stream (role, no content)? Then nothing is lost if it is not sent yet."""
    chunk = parse_event(event)
    if chunk is None or "error" in chunk:
        return False
    choices = chunk.get("choices") or []
    return bool(choices) and all(
        choice.get("finish_reason") is None and not _carries(choice.get("delta") or {}) for choice in choices
    )


def is_error(event: str) -> bool:
    """Is this vLLM's error event?"""
    return (parse_event(event) or {}).get("error") is not None


def _carries(delta: Mapping[str, Any]) -> bool:
    return any(value for key, value in delta.items() if key != "role")
