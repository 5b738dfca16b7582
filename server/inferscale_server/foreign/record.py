"""One memory of another system, or what is wrong with the place where one should be.

Knows: the fields of our own import. Refuses to know: whose format it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from inferscale_server.errors import InferScaleError


class Unreadable(InferScaleError):
    """A file that is not what it should be, as a whole. Nothing was imported."""


@dataclass(frozen=True, slots=True)
class Record:
    """A memory. `number` is its line, or its position in a file that is one JSON value, counted from 1.

    `user` is whose it was there, None when that was not said; `fields` are those of an imported fact.
    """

    number: int
    user: str | None
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that should have been a memory and is none, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A memory that is left out on purpose, and why."""

    number: int
    reason: str


Reading = Iterator[Record | Fault | LeftOut]


def fact_fields(text: str, **fields: object) -> dict[str, object]:
    """The fields of a fact, without those that are None or empty; the metadata without its own empty values."""
    return {"text": text, **_without_empty({key: _without_empty(value) for key, value in fields.items()})}


def text_in(fields: Mapping[str, object], *keys: str) -> str | None:
    """The first of these that holds text."""
    for key in keys:
        value = fields.get(key)
        if isinstance(value, str) and value.strip():
            return value
    return None


def word_in(fields: Mapping[str, object], key: str) -> str | None:
    """An id or a time as text; None when there is none."""
    value = fields.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def our_id(written: object) -> str | None:
    """A UUID, also behind a word and a dash, in the form of our ids; None for any other."""
    if not isinstance(written, str):
        return None
    try:
        return UUID(written[-36:]).hex
    except ValueError:
        return None


def _without_empty(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: one for key, one in value.items() if one not in (None, "", {}, [])}
