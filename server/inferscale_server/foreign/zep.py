"""Zep: the edges of a user's graph, as `client.graph.edge` lists them and Graphiti stores them.

Knows: EntityEdge (fact, valid_at, invalid_at, expired_at, group_id), and the facts of older versions. Refuses to know:
nodes and episodes: a fact says in words what they say in links. What Zep holds no longer true is left out, what will
stop being true expires then. A graph that Graphiti stores is parted by `group_id`, which is whose an edge is.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from inferscale_server.foreign.json_file import Numbered, listed, load_value, numbered
from inferscale_server.foreign.record import Fault, LeftOut, Reading, Record, fact_fields, our_id, text_in, word_in

ENDED = ("invalid_at", "expired_at")


def read(path: Path) -> Reading:
    """The facts of an export: a list, `{"edges": […]}` or `{"facts": […]}`, or one a line. Raises Unreadable."""
    for edge in numbered(listed(path, load_value(path), "edges", "facts", "relevant_facts")):
        yield _record(edge)


def _record(edge: Numbered) -> Record | Fault | LeftOut:
    value = edge.value
    if not isinstance(value, Mapping):
        return Fault(edge.number, "not an object")
    text = text_in(value, "fact")
    if text is None:
        return Fault(edge.number, 'no text under "fact"')
    try:
        ends = min((_moment(str(value[key])) for key in ENDED if value.get(key)), default=None)
    except ValueError as error:
        return Fault(edge.number, f"{' or '.join(ENDED)}: {error}")
    if ends is not None and ends <= datetime.now(UTC):
        return LeftOut(edge.number, "no longer true in Zep")
    attributes = value.get("attributes")
    fields = fact_fields(
        text,
        id=our_id(value.get("uuid")),
        timestamp=word_in(value, "valid_at"),
        created_at=word_in(value, "created_at"),
        expires_at=None if ends is None else ends.isoformat(),
        metadata={**(attributes if isinstance(attributes, Mapping) else {}), "relation": value.get("name")},
    )
    return Record(edge.number, word_in(value, "user_id") or word_in(value, "group_id"), fields)


def _moment(written: str) -> datetime:
    """In UTC where no zone is written. Raises ValueError unless it is ISO 8601."""
    moment = datetime.fromisoformat(written)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
