"""LangGraph's namespaces as places in InferScale: which user, and where below. No I/O, no LangGraph here.

A namespace is the store's root, then the user's label, then what the application adds: ("memories", "alice", "work").
Labels cannot hold dots, so user ids such as e-mail addresses go through `user_label`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Namespace = tuple[str, ...]

_ESCAPES = {"%": "%25", ".": "%2E", "\x00": "%00"}
_UNESCAPES = {escape: char for char, escape in _ESCAPES.items()}


def user_label(user: str) -> str:
    """A user id as a namespace label, with dots, NUL and percent signs escaped. To be used for every user id."""
    return re.sub(r"[%.\x00]", lambda found: _ESCAPES[found[0]], user)


def user_behind(label: str) -> str:
    """The user id that `user_label` made a label of."""
    return re.sub(r"%(?:25|2E|00)", lambda found: _UNESCAPES[found[0]], label)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a namespace lies. `top`: directly the user's, where facts that the store did not write are shown too."""

    user: str
    namespace: Namespace
    top: bool

    @property
    def path(self) -> str:
        """The namespace in one string."""
        return joined(self.namespace)


def joined(labels: Sequence[str]) -> str:
    """Labels in one string; no label holds a dot."""
    return ".".join(labels)


def place_of(namespace: Namespace, root: Namespace) -> Place:
    """Raises ValueError for a namespace that names no user behind the store's root."""
    depth = len(root)
    if namespace[:depth] != root or len(namespace) <= depth:
        wanted = ", ".join([*map(repr, root), "<user>"])
        raise ValueError(
            f"namespace {namespace!r}: this store's namespaces begin with ({wanted}): a user must be named"
        )
    return Place(user_behind(namespace[depth]), namespace, len(namespace) == depth + 1)
