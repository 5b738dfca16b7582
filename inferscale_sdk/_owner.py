"""Names on the wire: checks of user and fact ids, the shard header, path segments."""

from __future__ import annotations

import hashlib
from urllib.parse import quote


def check_id(value: str, name: str = "user") -> str:
    """`value` itself. Raises TypeError unless it is a str, ValueError if it is empty or has blanks at its ends."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if not value or value.strip() != value:
        raise ValueError(f"{name}={value!r}: must not be empty, nor begin or end with a blank")
    return value


def shard(user: str) -> str:
    """32 hex characters for `X-InferScale-Shard`: keeps one user on one replica without naming the user."""
    return hashlib.sha256(b"inferscale-shard|" + user.encode("utf-8")).hexdigest()[:32]


def segment(value: str) -> str:
    """`value` as one segment of a URL path; slashes and dots cannot climb out of it."""
    quoted = quote(value, safe="")
    return quoted.replace(".", "%2E") if not quoted.strip(".") else quoted
