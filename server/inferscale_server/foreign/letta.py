"""Letta: an agent file (.af), or the archival passages that its API lists.

Knows: memory blocks of both forms of an agent file, and passages. Refuses to know: messages, tools and prompts. The
block `persona` says who the agent is and not what it knows of the user, so it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from inferscale_server.foreign.json_file import Numbered, listed, load_value, numbered
from inferscale_server.foreign.record import Fault, LeftOut, Reading, Record, fact_fields, our_id, text_in, word_in

PASSAGES = ("passages", "archival_passages", "archival_memory")
BLOCKS = ("blocks", "core_memory")
PERSONA = "persona"


def read(path: Path) -> Reading:
    """The lines of an agent's blocks, and its passages. Raises Unreadable for a file that has neither."""
    value = load_value(path)
    found = [key for key in (*BLOCKS, *PASSAGES) if isinstance(value, Mapping) and isinstance(value.get(key), list)]
    blocks: list[object] = [one for key in found if key in BLOCKS for one in _list(value, key)]
    passages: list[object] = [one for key in found if key in PASSAGES for one in _list(value, key)]
    if not found:
        passages = list(listed(path, value, *BLOCKS, *PASSAGES))
    for block in numbered(blocks):
        yield from _block(block)
    for passage in numbered(passages):
        yield _passage(Numbered(len(blocks) + passage.number, passage.value))


def _list(value: object, key: str) -> Sequence[object]:
    assert isinstance(value, Mapping), key
    under: Sequence[object] = value[key]
    return under


def _block(block: Numbered) -> Iterator[Record | Fault | LeftOut]:
    value = block.value
    if not isinstance(value, Mapping) or not isinstance(value.get("value"), str):
        yield Fault(block.number, 'a block without a text under "value"')
        return
    label = word_in(value, "label")
    lines = [line.strip().removeprefix("-").strip() for line in str(value["value"]).splitlines()]
    for line in filter(None, lines):
        if label == PERSONA:
            yield LeftOut(block.number, "of the agent's persona")
        else:
            yield Record(block.number, None, fact_fields(line, metadata={"block": label}))


def _passage(passage: Numbered) -> Record | Fault | LeftOut:
    value = passage.value
    if not isinstance(value, Mapping):
        return Fault(passage.number, "not an object")
    text = text_in(value, "text", "content")
    if text is None:
        return Fault(passage.number, 'no text under "text"')
    if value.get("is_deleted"):
        return LeftOut(passage.number, "deleted in Letta")
    extra = value.get("metadata") or value.get("metadata_")
    fields = fact_fields(
        text,
        id=our_id(value.get("id")),
        created_at=word_in(value, "created_at"),
        metadata={**(extra if isinstance(extra, Mapping) else {}), "tags": value.get("tags")},
    )
    return Record(passage.number, None, fields)
