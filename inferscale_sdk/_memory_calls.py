"""The memory requests, from Python arguments to JSON, and how to read their answers. No I/O here.

Each function returns a Call; `Memories` and `AsyncMemories` send it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Literal, Never, TypedDict

from inferscale_sdk import _request
from inferscale_sdk._chat import as_list
from inferscale_sdk._memory_models import (
    AddResult,
    DeleteResult,
    Embeddings,
    Fact,
    FactHistory,
    FactSlice,
    Footprint,
    SearchResult,
    Slice,
    Status,
    UserCount,
    UserSlice,
)
from inferscale_sdk._owner import check_id, segment
from inferscale_sdk._reply import Reply
from inferscale_sdk._request import Call
from inferscale_sdk._wire import W, parse_reply

ROUTE = "/v1/memories"
ONE_ROUTE = "/v1/memories/{id}"
UNNAMED = (
    "add() takes facts and messages by name, after the user: "
    'client.memories.add("alice", facts=["My dog is called Bruno."])'
)
"""`add("alice", "My dog …")` reads well, and does not say whether a model is to make facts of it."""
_HEADER_SAFE = re.compile(r"[\x21-\x7e]{1,255}")

Timestamp = float | str | datetime
"""A moment: a datetime with a time zone, Unix seconds (UTC), or ISO 8601 text."""

Filter = Mapping[str, object]
"""`{"key": value}` or `{"key": {"gte": 3}}` over metadata and the fact's own fields, combined by and, or, not."""


class NotGiven(Enum):
    """The type of NOT_GIVEN."""

    NOT_GIVEN = "NOT_GIVEN"

    def __repr__(self) -> str:
        return self.value


NOT_GIVEN: Literal[NotGiven.NOT_GIVEN] = NotGiven.NOT_GIVEN
"""For an argument whose None means something: "remove it"."""


class _FactText(TypedDict):
    text: str


class FactInput(_FactText, total=False):
    """A fact to remember."""

    speaker: str | None
    timestamp: Timestamp | None
    session_id: str | None
    metadata: Mapping[str, object] | None
    expires_at: Timestamp | None
    agent_id: str | None
    run_id: str | None


def add(
    user: str,
    *misplaced: Never,
    facts: Sequence[str | FactInput] | None = None,
    messages: Sequence[Mapping[str, object]] | None = None,
    session_id: str | None = None,
    timestamp: Timestamp | None = None,
    metadata: Mapping[str, object] | None = None,
    expires_at: Timestamp | None = None,
    infer: bool | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
    idempotency_key: str | None = None,
) -> Call[AddResult]:
    """Remember facts, or what messages say."""
    if misplaced:
        raise TypeError(UNNAMED)
    if (facts is None) == (messages is None):
        raise ValueError("add() takes either facts or messages, exactly one of them")
    body: dict[str, object] = {
        "user_id": check_id(user),
        "facts": None if facts is None else [_fact_json(fact) for fact in as_list(facts, "facts")],
        "messages": None if messages is None else as_list(messages, "messages"),
        "session_id": None if session_id is None else check_id(session_id, "session_id"),
        "timestamp": time_json(timestamp, "timestamp"),
        "metadata": metadata,
        "expires_at": time_json(expires_at, "expires_at"),
        "infer": infer,
        **_scope(agent_id, run_id),
    }
    key = _checked_key(idempotency_key)
    timeout_s = _request.LONG_TIMEOUT_S
    request = _request.post(ROUTE, body, user=user, idempotency_key=key, default_timeout_s=timeout_s)
    return Call(request, reader(AddResult))


def search(
    user: str,
    query: str | None = None,
    *,
    vector: Sequence[float] | None = None,
    k: int | None = None,
    min_score: float | None = None,
    filter: Filter | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
) -> Call[SearchResult]:
    """Find a user's facts by meaning."""
    _request.check_count(k, "k")
    if (query is None) == (vector is None):
        raise ValueError("search() takes either query or vector, exactly one of them")
    if query is not None and not isinstance(query, str):
        raise TypeError(f"query must be a str, not {type(query).__name__}")
    wanted = {"query": query, "vector": None if vector is None else [float(number) for number in vector]}
    body = {"user_id": check_id(user), **wanted, "k": k, "min_score": min_score, "filter": filter}
    body |= _scope(agent_id, run_id)
    return Call(_request.post(f"{ROUTE}/search", body, user=user), reader(SearchResult))


def list_page(
    user: str,
    *,
    limit: int | None = None,
    cursor: str | None = None,
    filter: Filter | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
) -> Call[Slice[Fact]]:
    """One page of a user's facts."""
    _request.check_count(limit, "limit")
    size = None if limit is None else str(limit)
    where = None if filter is None else json.dumps(filter, ensure_ascii=False, allow_nan=False)
    scope = _scope(agent_id, run_id)
    request = _request.get(ROUTE, user=check_id(user), limit=size, cursor=cursor, filter=where, **scope)
    return Call(request, reader(FactSlice))


def users_page(
    *, limit: int | None = None, cursor: str | None = None, fact_id: str | None = None
) -> Call[Slice[UserCount]]:
    """One page of the users that have facts, or that one fact."""
    _request.check_count(limit, "limit")
    size = None if limit is None else str(limit)
    return Call(_request.get("/v1/users", limit=size, cursor=cursor, fact_id=fact_id), reader(UserSlice))


def update(
    id: str,
    user: str,
    *,
    text: str | None = None,
    metadata: Mapping[str, object] | None = None,
    timestamp: Timestamp | NotGiven | None = NOT_GIVEN,
    expires_at: Timestamp | NotGiven | None = NOT_GIVEN,
    speaker: str | NotGiven | None = NOT_GIVEN,
    session_id: str | NotGiven | None = NOT_GIVEN,
) -> Call[Fact]:
    """Change one fact."""
    body: dict[str, object] = {"text": text, "metadata": metadata}
    body = {key: value for key, value in body.items() if value is not None}
    moments = {"timestamp": timestamp, "expires_at": expires_at}
    body |= {key: time_json(at, key) for key, at in moments.items() if not isinstance(at, NotGiven)}
    names = {"speaker": speaker, "session_id": session_id}
    body |= {key: name for key, name in names.items() if not isinstance(name, NotGiven)}
    if not body:
        raise ValueError("update() takes at least one of text, metadata, timestamp, expires_at, speaker and session_id")
    return Call(_request.patch(ONE_ROUTE, _one_path(id), body, user=check_id(user)), reader(Fact))


def history(id: str, user: str) -> Call[FactHistory]:
    """What happened to one fact."""
    request = _request.get(f"{ONE_ROUTE}/history", f"{_one_path(id)}/history", user=check_id(user))
    return Call(request, reader(FactHistory))


def get(id: str, user: str) -> Call[Fact]:
    """One fact."""
    return Call(_request.get(ONE_ROUTE, _one_path(id), user=check_id(user)), reader(Fact))


def delete(id: str, user: str) -> Call[DeleteResult]:
    """Forget one fact."""
    return Call(_request.delete(ONE_ROUTE, _one_path(id), user=check_id(user)), reader(DeleteResult))


def delete_all(user: str, *, agent_id: str | None = None, run_id: str | None = None) -> Call[DeleteResult]:
    """Forget all of a user's facts, or those of an agent or a run."""
    request = _request.delete(ROUTE, user=check_id(user), **_scope(agent_id, run_id))
    return Call(request, reader(DeleteResult))


def footprint(user: str) -> Call[Footprint]:
    """What a user's memory takes."""
    path = f"/v1/users/{segment(check_id(user))}/footprint"
    return Call(_request.for_owner("/v1/users/{user_id}/footprint", path, user), reader(Footprint))


def status() -> Call[Status]:
    """What the server says about itself."""
    return Call(_request.get("/v1/inferscale/status"), reader(Status))


def embed(texts: Sequence[str]) -> Call[list[list[float]]]:
    """Vectors of texts, by the server's embedder. Raises TypeError for one string in place of a list."""
    if isinstance(texts, str):
        raise TypeError("texts must be a list of strings, not one string")
    body = _request.encode({"input": list(texts)})
    route, headers = "/v1/embeddings", {"content-type": "application/json"}
    request = _request.Request(
        "POST", route, route, headers=headers, body=body, default_timeout_s=_request.LONG_TIMEOUT_S
    )

    def rows(reply: Reply) -> list[list[float]]:
        return [one.embedding for one in parse_reply(Embeddings, reply).data]

    return Call(request, rows)


def ready() -> Call[None]:
    """Whether the server takes work; only the status counts."""
    return Call(_request.get("/ready"), lambda reply: None)


def reader(model: type[W]) -> Callable[[Reply], W]:
    """A function that reads a reply as `model`."""
    return partial(parse_reply, model)


def _scope(agent_id: str | None, run_id: str | None) -> dict[str, str | None]:
    given = {"agent_id": agent_id, "run_id": run_id}
    return {name: None if value is None else check_id(value, name) for name, value in given.items()}


def _one_path(id: str) -> str:
    return f"{ROUTE}/{segment(check_id(id, 'id'))}"


def _checked_key(key: str | None) -> str | None:
    if key is not None and not _HEADER_SAFE.fullmatch(check_id(key, "idempotency_key")):
        raise ValueError("idempotency_key: must be 1 to 255 printable ASCII characters without blanks")
    return key


def _fact_json(fact: object) -> object:
    if isinstance(fact, str):
        return fact
    if not isinstance(fact, Mapping):
        raise TypeError(f"a fact must be a str or a dict with 'text', not {type(fact).__name__}")
    if "text" not in fact:
        raise ValueError(f"a fact needs 'text'; this one has {sorted(fact)}")
    given = {key: value for key, value in fact.items() if value is not None}
    return given | {key: time_json(given[key], key) for key in ("timestamp", "expires_at") if key in given}


def time_json(moment: Timestamp | None, name: str) -> float | str | None:
    """A moment as JSON. Raises ValueError for a datetime without a time zone and text that is none, else TypeError."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError(f"{name}={moment!r}: needs a time zone, for example tzinfo=datetime.UTC")
        return moment.timestamp()
    if isinstance(moment, str):
        _check_iso(moment, name)
    elif moment is not None and (isinstance(moment, bool) or not isinstance(moment, int | float)):
        raise TypeError(f"{name} must be a datetime, Unix seconds or ISO 8601 text, not {type(moment).__name__}")
    return moment


def _check_iso(text: str, name: str) -> None:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: must be ISO 8601, such as 2025-05-08 or 2025-05-08T13:56:00Z") from None
