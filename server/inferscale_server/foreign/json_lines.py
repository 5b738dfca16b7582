"""Plain JSON lines: a text, or an object with a text under one of the usual names, on each line.

Knows: what people call things. Refuses to know: one system more than another. A key that has no meaning here is kept as
metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inferscale_server.foreign.json_file import Numbered, lines_in, load_text
from inferscale_server.foreign.record import Fault, Reading, Record, fact_fields, our_id, text_in, word_in

TEXTS = ("text", "memory", "fact", "content", "data")
TIMES = ("timestamp", "created_at", "updated_at", "expires_at")
OWN = frozenset({*TEXTS, *TIMES, "id", "user_id", "speaker", "session_id", "agent_id", "run_id", "metadata"})


def read(path: Path) -> Reading:
    """The memory on each line. Raises Unreadable when there is no such file."""
    for line in lines_in(load_text(path)):
        yield line if isinstance(line, Fault) else _record(line)


def _record(line: Numbered) -> Record | Fault:
    value = line.value
    if isinstance(value, str) and value.strip():
        return Record(line.number, None, {"text": value})
    if not isinstance(value, Mapping):
        return Fault(line.number, "neither a text nor an object")
    text = text_in(value, *TEXTS)
    if text is None:
        return Fault(line.number, f"no text under {', '.join(TEXTS)}")
    metadata = value.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        return Fault(line.number, "metadata is not an object")
    rest = {key: one for key, one in value.items() if key not in OWN}
    named = {key: value.get(key) for key in (*TIMES, "speaker", "session_id", "agent_id", "run_id")}
    fields = fact_fields(text, id=our_id(value.get("id")), metadata={**rest, **(metadata or {})}, **named)
    return Record(line.number, word_in(value, "user_id"), fields)
