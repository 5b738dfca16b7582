"""Cursors: where a page ended, in a form that clients hand back unread.

Knows: how a position is written. Refuses to know: what is paged.
"""

from __future__ import annotations

import base64
import binascii
import re

from inferscale_server.errors import InvalidRequest
from inferscale_server.limits import MAX_PAGE
from inferscale_server.types import Owner

MAX_SEQ = 2**63 - 1


def check_limit(limit: int) -> None:
    """Raises InvalidRequest for a page size that is not 1 … MAX_PAGE."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest(f"limit must be 1 to {MAX_PAGE}, not {limit}", param="limit")


def cursor_after_seq(owner: Owner, seq: int) -> str:
    """The cursor of the owner's facts that come after this one; nobody else's list takes it."""
    return _encode(f"after:{seq}:{_mark(owner)}")


def seq_of(owner: Owner, cursor: str | None) -> int:
    """The `seq` to go on after, 0 without a cursor. Raises InvalidRequest for one that this server did not write for
    this owner's list."""
    if cursor is None:
        return 0
    match = re.fullmatch(rb"after:([0-9]{1,19}):([0-9a-f]{16})", _decode(cursor))
    if match is None or int(match[1]) > MAX_SEQ or match[2].decode() != _mark(owner):
        raise _unknown()
    return int(match[1])


def cursor_after_user(tenant: str, user: str) -> str:
    """The cursor of the tenant's users that come after this one by name."""
    return _encode(f"user:{_mark(Owner(tenant, ''))}:{user}")


def user_of(tenant: str, cursor: str | None) -> str:
    """The user to go on after, "" without a cursor. Raises InvalidRequest for one that this server did not write for
    this tenant's list."""
    if cursor is None:
        return ""
    raw, start = _decode(cursor), f"user:{_mark(Owner(tenant, ''))}:".encode()
    if not raw.startswith(start):
        raise _unknown()
    try:
        return raw.removeprefix(start).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unknown() from error


def _mark(owner: Owner) -> str:
    """Whose list a cursor is of; it says nothing to whoever does not know the owner."""
    return owner.digest()[:16]


def _encode(position: str) -> str:
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def _decode(cursor: str) -> bytes:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise _unknown() from error


def _unknown() -> InvalidRequest:
    return InvalidRequest("cursor is not one that this server gave out for this list", param="cursor")
