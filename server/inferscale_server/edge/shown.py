"""Facts, outcomes and vectors as JSON values.

Knows: the fields of responses. Refuses to know: routes, and where the values come from.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from typing import Literal

from inferscale_server.moments import in_calendar
from inferscale_server.types import AddOutcome, Fact, FactEvent, FactHistory, FactPage, Hit, UserPage

Shown = dict[str, object]


def show_fact(fact: Fact) -> Shown:
    """A fact; `timestamp` is when it was said; all times in ISO 8601 with Z."""
    return {
        "id": fact.id,
        "text": fact.text,
        "speaker": fact.speaker,
        "timestamp": _show_moment(fact.occurred_at),
        "session_id": fact.session_id,
        "agent_id": fact.agent_id,
        "run_id": fact.run_id,
        "metadata": dict(fact.metadata),
        "created_at": show_time(fact.created_at),
        "updated_at": show_time(fact.updated_at or fact.created_at),
        "expires_at": _show_moment(fact.expires_at),
    }


def show_hit(hit: Hit) -> Shown:
    """A fact with its cosine similarity."""
    return {**show_fact(hit.fact), "score": hit.score}


def show_page(page: FactPage) -> Shown:
    """A page with the cursor of the next one."""
    return {
        "data": [show_fact(fact) for fact in page.facts],
        "next_cursor": page.next_cursor,
        "has_more": page.next_cursor is not None,
    }


def show_history(fact_id: str, history: FactHistory) -> Shown:
    """What happened to a fact, oldest first."""
    return {"id": fact_id, "data": [_show_event(event) for event in history]}


def show_users(page: UserPage) -> Shown:
    """A page of users with the cursor of the next one."""
    return {
        "data": [{"user_id": count.user, "facts": count.facts} for count in page.users],
        "next_cursor": page.next_cursor,
        "has_more": page.next_cursor is not None,
    }


def show_outcome(outcome: AddOutcome) -> Shown:
    """What became of one fact; `reason` only when there is one."""
    shown: Shown = {"id": outcome.id, "text": outcome.text, "status": outcome.status}
    return shown if outcome.reason is None else {**shown, "reason": outcome.reason}


def show_time(seconds: float) -> str:
    """Unix seconds as `2023-05-08T13:56:00Z`."""
    return in_calendar(seconds).isoformat().replace("+00:00", "Z")


def _show_moment(seconds: float | None) -> str | None:
    return None if seconds is None else show_time(seconds)


def _show_event(event: FactEvent) -> Shown:
    metadata = None if event.metadata is None else dict(event.metadata)
    return {
        "event": event.event,
        "at": show_time(event.at),
        "text": event.text,
        "speaker": event.speaker,
        "timestamp": _show_moment(event.occurred_at),
        "session_id": event.session_id,
        "metadata": metadata,
    }


def show_embeddings(rows: Iterable[Sequence[float]], model: str, encoding: Literal["float", "base64"]) -> Shown:
    """Vectors in OpenAI's list shape; base64 is of little-endian float32. Tokens are not counted here: usage is 0."""
    shown = [list(map(float, row)) if encoding == "float" else _base64(row) for row in rows]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(shown)],
        "model": model,
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


def _base64(row: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode("ascii")
