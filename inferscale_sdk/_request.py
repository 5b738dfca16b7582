"""One request, ready to be sent by either shell, and how to read its answer. No I/O here."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from inferscale_sdk._owner import shard
from inferscale_sdk._reply import Reply

if TYPE_CHECKING:
    from inferscale_sdk._transport import Timeout

T = TypeVar("T")

SHORT_TIMEOUT_S = 30.0
"""For reads and deletes of memories."""
LONG_TIMEOUT_S = 600.0
"""For what runs a model: answers, and the embedding of up to 1,000 new facts."""


@dataclass(frozen=True, slots=True)
class Request:
    """Method, path, query, JSON body (bytes) and headers; the idempotency key is among them, so all tries share it.

    `route` is the path with placeholders: fit for a log, where ids are not.
    """

    method: str
    route: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    timeout: float | Timeout | None = None
    default_timeout_s: float = SHORT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the pure function that turns its successful reply into a result."""

    request: Request
    parse: Callable[[Reply], T]


def get(route: str, path: str | None = None, *, user: str | None = None, **params: str | None) -> Request:
    """A GET; `user` sets `user_id` and the shard header, None parameters are left out."""
    return _bare("GET", route, path, user, params)


def for_owner(route: str, path: str, user: str) -> Request:
    """A GET whose path names the user: the shard header without `user_id`."""
    return Request("GET", route, path, {}, owner_headers(user))


def delete(route: str, path: str | None = None, *, user: str | None = None, **params: str | None) -> Request:
    """A DELETE; `user` sets `user_id` and the shard header, None parameters are left out."""
    return _bare("DELETE", route, path, user, params)


def post(
    route: str,
    body: Mapping[str, object],
    *,
    user: str,
    idempotency_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | Timeout | None = None,
    default_timeout_s: float = SHORT_TIMEOUT_S,
) -> Request:
    """A POST of JSON with one idempotency key. Raises ValueError for NaN, lone surrogates; TypeError for non-JSON."""
    mine = {"content-type": "application/json", "idempotency-key": idempotency_key or uuid.uuid4().hex}
    mine |= owner_headers(user)
    mine |= {name.lower(): value for name, value in (headers or {}).items()}
    return Request("POST", route, route, {}, mine, encode(body), timeout, default_timeout_s)


def patch(route: str, path: str, body: Mapping[str, object], *, user: str) -> Request:
    """A PATCH of JSON, None included: there it means "remove". Raises like `post`."""
    headers = {"content-type": "application/json", **owner_headers(user)}
    return Request("PATCH", route, path, {"user_id": user}, headers, to_json(body), default_timeout_s=LONG_TIMEOUT_S)


def post_lines(route: str, lines: bytes, *, user: str) -> Request:
    """A POST of NDJSON for a user."""
    headers = {"content-type": "application/x-ndjson", **owner_headers(user)}
    return Request("POST", route, route, {"user_id": user}, headers, lines, default_timeout_s=LONG_TIMEOUT_S)


def check_count(value: object, name: str) -> None:
    """Raises TypeError unless `value` is None or a whole number, ValueError when it is below 1."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}={value}: must be at least 1")


def encode(body: Mapping[str, object]) -> bytes:
    """Compact UTF-8 JSON; keys whose value is None are left out at the top level."""
    return to_json({key: value for key, value in body.items() if value is not None})


def to_json(value: object) -> bytes:
    """Compact UTF-8 JSON. Raises ValueError for NaN and lone surrogates, TypeError for what is not JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def owner_headers(user: str | None) -> dict[str, str]:
    """The shard header of a user, nothing for None."""
    return {} if user is None else {"x-inferscale-shard": shard(user)}


def _bare(method: str, route: str, path: str | None, user: str | None, params: Mapping[str, str | None]) -> Request:
    given = {"user_id": user, **params}
    query = {key: value for key, value in given.items() if value is not None}
    return Request(method, route, path or route, query, owner_headers(user))
