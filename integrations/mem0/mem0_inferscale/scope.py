"""Whose memory a mem0 payload or filter speaks of, and what that owner is called on the server.

Knows: mem0's three ids (user_id, agent_id, run_id) and collections. Refuses to know: HTTP, and what is remembered.

A user's memories in the default collection belong to the InferScale user of that name, so that chats recall them. All
else gets owners of its own below `mem0/`, which no user of the default collection may be called like: what belongs to
an agent or a run alone, and every other collection, such as the entities that mem0 links memories by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_COLLECTION = "mem0"
PREFIX = "mem0/"
KINDS = ("user_id", "agent_id", "run_id")
"""The first of these that is named decides whose the memory is."""
NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which id (`kind`, None without any) decides, its value, and the user that the server knows for it."""

    kind: str | None
    value: str
    owner: str


def scope_of(collection: str, ids: Mapping[str, object]) -> Scope:
    """The scope that these ids name. Raises ValueError for an id that is not one string."""
    for kind in KINDS:
        value = ids.get(kind)
        if value is not None and value != "":
            return _scope(collection, kind, _text(kind, value))
    return Scope(None, "", f"{_root(collection)}{NOBODY}")


def scope_of_owner(collection: str, owner: str) -> Scope | None:
    """The scope whose memories this user of the server has; None when they are of another collection."""
    if not owner.startswith(PREFIX):
        return Scope("user_id", owner, owner) if collection == DEFAULT_COLLECTION else None
    if not owner.startswith(_root(collection)):
        return None
    kind, _, value = owner.removeprefix(_root(collection)).partition("/")
    return Scope(f"{kind}_id" if value else None, value, owner)


def collection_of(owner: str) -> str:
    """The collection that a user of the server belongs to."""
    return owner.split("/")[1] if owner.startswith(PREFIX) else DEFAULT_COLLECTION


def check_collection(name: str) -> str:
    """`name` itself. Raises ValueError for one that cannot be a part of an owner's name."""
    if not name or "/" in name or name.strip() != name:
        raise ValueError(f"collection_name={name!r}: must not be empty, hold a slash, or begin or end with a blank")
    return name


def _scope(collection: str, kind: str, value: str) -> Scope:
    if collection == DEFAULT_COLLECTION and kind == "user_id":
        if value.startswith(PREFIX):
            raise ValueError(f"user_id={value!r}: ids that begin with {PREFIX!r} are taken by other collections")
        return Scope(kind, value, value)
    return Scope(kind, value, f"{_root(collection)}{kind.removesuffix('_id')}/{value}")


def _root(collection: str) -> str:
    return f"{PREFIX}{collection}/"


def _text(kind: str, value: object) -> str:
    if isinstance(value, Mapping) and set(value) == {"eq"}:
        value = value["eq"]
    if not isinstance(value, str) or value == "*":
        raise ValueError(f"{kind}={value!r}: memories are kept apart by it, so it must be one id")
    return value
