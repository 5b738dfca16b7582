"""What the store keeps in a fact, and how LangGraph's filters and values read there. No I/O here.

A fact's text is what is found and what the model is told; key, namespace and value lie in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import Item, SearchItem

from inferscale_sdk import Fact
from langchain_inferscale._namespace import Namespace, Place, joined

MARK = "langgraph"
"""The one metadata key that the store writes."""
TEXT_FIELDS = ("text", "content", "content.content", "memory", "data")
EPOCH = datetime.fromtimestamp(0, UTC)

_OPERATORS = {"$eq": "eq", "$ne": "ne", "$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}


def metadata_of(place: Place, key: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a fact that holds this value."""
    above = [joined(place.namespace[: depth + 1]) for depth in range(len(place.namespace))]
    return {MARK: {"namespace": place.path, "above": above, "key": key, "value": dict(value)}}


def text_of(value: Mapping[str, Any], index: Sequence[str] | None, fields: Sequence[str]) -> str:
    """What a value says: all fields of its `index`, else the first of `fields` that holds text, else its JSON."""
    if index is not None:
        said = [text for path in index if (text := _text_at(value, path))]
    else:
        said = [text for path in fields if (text := _text_at(value, path))][:1]
    return "\n".join(said) or json.dumps(value, ensure_ascii=False)


def at_key(place: Place, key: str) -> dict[str, Any]:
    """The filter for one key of one namespace."""
    return {f"{MARK}.namespace": place.path, f"{MARK}.key": key}


def below(place: Place, wanted: Mapping[str, Any] | None) -> dict[str, Any]:
    """The filter for a namespace and all below it. Raises ValueError for what InferScale's filters cannot say."""
    scope: dict[str, Any] = {f"{MARK}.above": {"contains": place.path}}
    if place.top:
        scope = {"or": [scope, {MARK: None}]}
    return {"and": [scope, *_conditions(f"{MARK}.value", wanted or {})]}


def is_stored(fact: Fact) -> bool:
    """Whether the store wrote this fact, and not an add or a chat."""
    return isinstance(fact.metadata.get(MARK), Mapping)


def namespace_of(fact: Fact, top: Namespace) -> Namespace:
    """Where a fact lies; `top` for one that the store did not write."""
    return tuple(_mark(fact)["namespace"].split(".")) if is_stored(fact) else top


def item_of(fact: Fact, top: Namespace) -> Item:
    """A fact as LangGraph's item."""
    return Item(**_fields(fact, top))


def search_item_of(fact: Fact, top: Namespace) -> SearchItem:
    """A fact as a search result; it has a score if a query found it."""
    return SearchItem(**_fields(fact, top), score=getattr(fact, "score", None))


def _fields(fact: Fact, top: Namespace) -> dict[str, Any]:
    created = fact.created_at or EPOCH
    if is_stored(fact):
        key, value = _mark(fact)["key"], _mark(fact)["value"]
    else:
        key, value = fact.id, {**fact.metadata, "text": fact.text}
    times = {"created_at": created, "updated_at": fact.updated_at or created}
    return {"namespace": namespace_of(fact, top), "key": key, "value": value, **times}


def _mark(fact: Fact) -> Mapping[str, Any]:
    mark = fact.metadata[MARK]
    assert isinstance(mark, Mapping), f"ask is_stored() first: {fact.id}"
    return mark


def _text_at(value: Any, path: str) -> str | None:
    for name in [] if path == "$" else path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if path == "$":
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) and value.strip() else None


def _conditions(key: str, wanted: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(wanted, Mapping):
        if isinstance(wanted, list | tuple):
            raise ValueError(f"filter on {key!r}: lists cannot be compared")
        yield {key: wanted}
        return
    for name, operand in wanted.items():
        if not name.startswith("$"):
            yield from _conditions(f"{key}.{name}", operand)
        elif name not in _OPERATORS:
            raise ValueError(f"filter on {key!r}: unknown operator {name!r}; known are {', '.join(_OPERATORS)}")
        else:
            yield {key: {_OPERATORS[name]: operand}}
