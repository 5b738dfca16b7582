"""What each operation of the store asks of the memory API, step by step. No I/O here.

Every function is a generator of questions (`Ask`) that gets each answer back, or the SDK's error at that place; the
sync and the async store put the same questions to their own client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from langgraph.store.base import (
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)

from inferscale_sdk import ConflictError, Fact, NotFoundError
from langchain_inferscale import _stored
from langchain_inferscale._namespace import Namespace, Place, place_of

Ask = Callable[[Any], Any]
"""A question to `client.memories`, sync or async."""
Steps = Generator[Ask, Any, Any]

PAGE = 1000
"""Facts a request, the most that the server gives."""
_FACT_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a store lays values out: the labels before the user's, and which fields of a value are its text."""

    root: Namespace
    fields: Sequence[str]


def steps_of(op: Op, layout: Layout) -> Steps:
    """The steps of any operation. Raises ValueError for one that names no user or asks what InferScale cannot do."""
    validate_op_namespace(op)
    if isinstance(op, GetOp):
        return _get(op, place_of(op.namespace, layout.root))
    if isinstance(op, SearchOp):
        return _search(op, place_of(op.namespace_prefix, layout.root))
    if isinstance(op, PutOp):
        return _put(op, place_of(op.namespace, layout.root), layout)
    if isinstance(op, ListNamespacesOp):
        return _list_namespaces(op, layout)
    raise TypeError(f"not an operation of a store: {type(op).__name__}")


def _get(op: GetOp, place: Place) -> Generator[Ask, Any, Item | None]:
    found = yield from _find(place, op.key)
    return _stored.item_of(found[0], place.namespace) if found else None


def _search(op: SearchOp, place: Place) -> Generator[Ask, Any, list[SearchItem]]:
    where, end = _stored.below(place, op.filter), op.offset + op.limit
    if op.query:
        k = min(end, PAGE)
        facts = list((yield lambda memories: memories.search(place.user, op.query, k=k, filter=where)))
    else:
        facts = yield from _listed(place.user, where, end)
    return [_stored.search_item_of(fact, place.namespace) for fact in facts[op.offset : end]]


def _put(op: PutOp, place: Place, layout: Layout) -> Generator[Ask, Any, None]:
    found = yield from _find(place, op.key)
    if op.value is not None:
        kept = yield from _write(op, place, layout, found)
        found = [fact for fact in found if fact.id != kept]
    for fact in found:
        yield from _forget(place, fact.id)


def _write(op: PutOp, place: Place, layout: Layout, found: list[Fact]) -> Generator[Ask, Any, str]:
    """Change the first fact found, else add one. Returns its id."""
    fields = _fields_of(op, place, layout)
    if found:
        fact_id = found[0].id
    else:
        result = yield lambda memories: memories.add(place.user, facts=[fields])
        [outcome] = result.results
        if outcome.status in ("stored", "superseded"):
            return str(outcome.id)
        if outcome.status != "duplicate":
            raise ValueError(f"key {op.key!r} was not stored: {outcome.reason}")
        fact_id = outcome.id
        same = yield lambda memories: memories.get(fact_id, place.user)
        if _stored.is_stored(same):
            raise ConflictError(f"key {op.key!r}: another key of this user says the same, and a fact is kept once")
    yield lambda memories: memories.update(fact_id, place.user, **fields)
    return str(fact_id)


def _fields_of(op: PutOp, place: Place, layout: Layout) -> dict[str, Any]:
    if op.index is False:
        raise ValueError("index=False: all that InferScale keeps can be found by meaning")
    assert op.value is not None, "a put without a value deletes"
    ends = None if op.ttl is None else datetime.now(UTC) + timedelta(minutes=op.ttl)
    return {
        "text": _stored.text_of(op.value, op.index, layout.fields),
        "metadata": _stored.metadata_of(place, op.key, op.value),
        "expires_at": ends,
    }


def _list_namespaces(op: ListNamespacesOp, layout: Layout) -> Generator[Ask, Any, list[Namespace]]:
    conditions = op.match_conditions or ()
    prefix = next((tuple(each.path) for each in conditions if each.match_type == "prefix"), ())
    place = place_of(prefix[: len(layout.root) + 1], layout.root)
    if place.namespace[-1] == "*":
        raise ValueError("namespaces are listed a user: the prefix must name one, not '*'")
    facts = yield from _listed(place.user, None, None)
    seen = {_stored.namespace_of(fact, place.namespace) for fact in facts}
    matching = {space[: op.max_depth] for space in seen if all(_matches(space, each) for each in conditions)}
    return sorted(matching)[op.offset : op.offset + op.limit]


def _find(place: Place, key: str) -> Generator[Ask, Any, list[Fact]]:
    """The facts under a key, newest first: one, or more where two programs wrote a new key at once."""
    where = _stored.at_key(place, key)
    page = yield lambda memories: memories.list(place.user, limit=PAGE, filter=where)
    if page.data or not (place.top and _FACT_ID.fullmatch(key)):
        return sorted(page.data, key=lambda fact: fact.updated_at or _stored.EPOCH, reverse=True)
    try:
        fact = yield lambda memories: memories.get(key, place.user)
    except NotFoundError:
        return []
    return [] if _stored.is_stored(fact) else [fact]


def _forget(place: Place, fact_id: str) -> Generator[Ask, Any, None]:
    try:
        yield lambda memories: memories.delete(fact_id, place.user)
    except NotFoundError:
        return  # Somebody else was faster.


def _listed(user: str, where: dict[str, Any] | None, count: int | None) -> Generator[Ask, Any, list[Fact]]:
    """The user's facts, oldest first, at most `count`."""
    facts: list[Fact] = []
    cursor: str | None = None
    while count is None or len(facts) < count:
        at = cursor
        page = yield lambda memories: memories.list(user, limit=PAGE, cursor=at, filter=where)  # noqa: B023
        facts += page.data
        cursor = page.next_cursor
        if not page.has_next_page():
            break
    return facts if count is None else facts[:count]


def _matches(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
