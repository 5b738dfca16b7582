"""Zep: the edges of a user's graph, as `client.graph.edge` lists them and Graphiti stores them.

Knows: EntityEdge (fact, valid_at, invalid_at, expired_at), and the facts of older versions. Refuses to know: nodes and
episodes: a fact says in words what they say in links. What Zep holds no longer true is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    ended = next((key for key in ENDED if value.get(key)), None)
    if ended is not None:
        return LeftOut(edge.number, "no longer true in Zep")
    attributes = value.get("attributes")
    fields = fact_fields(
        text,
        id=our_id(value.get("uuid")),
        timestamp=word_in(value, "valid_at"),
        created_at=word_in(value, "created_at"),
        metadata={**(attributes if isinstance(attributes, Mapping) else {}), "relation": value.get("name")},
    )
    return Record(edge.number, word_in(value, "user_id"), fields)
