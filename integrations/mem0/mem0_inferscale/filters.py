"""mem0's filters in InferScale's language.

Knows: both languages. Refuses to know: facts. What cannot be said is refused, never ignored: a filter that silently
lets more through would show memories that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mem0_inferscale.payload import escaped
from mem0_inferscale.scope import Scope, scope_of

Filter = dict[str, object]

LISTS = {"AND": "and", "$and": "and", "OR": "or", "$or": "or", "NOT": "not", "$not": "not"}
OPERATORS = frozenset({"eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "contains"})
UNKNOWN_KEYS = frozenset({"data", "hash", "text_lemmatized"})
"""Keys of a payload that the server has no metadata of."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose memories, and which of them; a scope without an id means everybody's."""

    scope: Scope
    where: Filter | None


def wanted(collection: str, filters: Mapping[str, object] | None) -> Wanted:
    """What these filters ask for. Raises ValueError for what the server cannot compare."""
    given = dict(filters or {})
    scope = scope_of(collection, given)
    if scope.kind is not None:
        del given[scope.kind]
    return Wanted(scope, translate({key: value for key, value in given.items() if value is not None}))


def translate(filters: Mapping[str, object]) -> Filter | None:
    """All of these conditions; None for no condition. Raises ValueError."""
    parts = [part for key, value in filters.items() for part in _parts(key, value)]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else {"and": list(parts)}


def _parts(key: str, value: object) -> list[Filter]:
    if key not in LISTS:
        return _conditions(key, value)
    inner = [part for one in _listed(key, value) if (part := translate(one)) is not None]
    if LISTS[key] == "or":
        return [{"or": inner}] if inner else []
    return [{"not": part} for part in inner] if LISTS[key] == "not" else inner


def _listed(key: str, value: object) -> list[Mapping[str, object]]:
    listed = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, Mapping) for one in listed):
        raise ValueError(f"filter {key!r}: must be a list of filters")
    return list(listed)


def _conditions(key: str, value: object) -> list[Filter]:
    if key == "user_id" or key in UNKNOWN_KEYS:
        raise ValueError(f"filter {key!r}: cannot be compared here" + (", only named" if key == "user_id" else ""))
    name = escaped(key)
    if value == "*":
        return [{name: {"ne": None}}]
    if isinstance(value, list | tuple):
        return [{name: {"in": list(value)}}]
    if not isinstance(value, Mapping):
        return [{name: value}]
    unknown = sorted(set(value) - OPERATORS)
    if unknown:
        raise ValueError(f"filter {key!r}: there is no operator {unknown[0]!r}; known are {sorted(OPERATORS)}")
    return [{name: dict(value)}]
