"""A mem0 payload as a fact of InferScale, and back.

Knows: which keys of a payload are the fact's own. Refuses to know: where either is kept. What mem0 can compute again
(hash, lemmatised text) is not sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from inferscale_sdk import Fact
from mem0_inferscale.scope import Scope

COLLECTION_KEY = "mem0_collection"
"""Metadata that marks what mem0 has put here, so that a reset touches nothing else."""
ESCAPE = "mem0_"
RESERVED = frozenset({"speaker", "session_id", "timestamp", "expires_at", "id", "and", "or", "not"})
"""Names that mean something else to the server, as metadata keys."""
IDS = ("agent_id", "run_id")
_OWN = frozenset({"data", "hash", "text_lemmatized", "created_at", "updated_at", "user_id", *IDS})


def fact_id_of(vector_id: object) -> str:
    """mem0's id as the server writes it. Raises ValueError unless it is a UUID."""
    try:
        return UUID(str(vector_id)).hex
    except ValueError as error:
        raise ValueError(f"id {vector_id!r}: must be a UUID, as mem0 makes them") from error


def vector_id_of(fact_id: str) -> str:
    """The server's id as mem0 writes it."""
    return str(UUID(fact_id))


def line_of(vector_id: str, payload: Mapping[str, object], collection: str) -> dict[str, object]:
    """A payload as a line to import. Raises ValueError when it holds no text."""
    ids = {key: payload[key] for key in IDS if payload.get(key)}
    times = {key: payload[key] for key in ("created_at", "updated_at") if payload.get(key)}
    return {
        "id": fact_id_of(vector_id),
        "text": text_of(payload),
        "speaker": payload.get("actor_id") or payload.get("role"),
        "metadata": metadata_of(payload, collection),
        "expires_at": expiry_of(payload),
        **ids,
        **times,
    }


def text_of(payload: Mapping[str, object]) -> str:
    """What is remembered. Raises ValueError when there is none."""
    text = payload.get("data")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the payload has no text under 'data', and InferScale remembers texts")
    return text


def metadata_of(payload: Mapping[str, object], collection: str) -> dict[str, object]:
    """What is left of a payload beside the fact's own fields."""
    rest = {escaped(key): value for key, value in payload.items() if key not in _OWN and value is not None}
    return {**rest, COLLECTION_KEY: collection}


def expiry_of(payload: Mapping[str, object]) -> float | None:
    """Unix seconds at the end of the payload's expiration_date, a day of UTC."""
    written = payload.get("expiration_date")
    if not written:
        return None
    day = datetime.combine(date.fromisoformat(str(written)), datetime.min.time(), UTC)
    return (day + timedelta(days=1)).timestamp()


def payload_of(fact: Fact, scope: Scope) -> dict[str, object]:
    """The payload that mem0 gave, or would have given for a fact that came otherwise."""
    rest = {_unescaped(key): value for key, value in fact.metadata.items() if key != COLLECTION_KEY}
    ids = _ids(fact)
    payload = {
        **({"actor_id": fact.speaker} if fact.speaker and "role" not in rest else {}),
        **rest,
        "data": fact.text,
        "hash": hashlib.md5(fact.text.encode(), usedforsecurity=False).hexdigest(),
        "created_at": _iso(fact.created_at),
        "updated_at": _iso(fact.updated_at),
        **{key: value for key, value in ids.items() if value},
    }
    return payload if scope.kind is None else {**payload, scope.kind: scope.value}


def says(fact: Fact, line: Mapping[str, object]) -> bool:
    """Are they the same to the server: text, speaker, agent and run?"""
    there = {"text": fact.text, "speaker": fact.speaker, **_ids(fact)}
    here = {"text": str(line["text"]).strip(), **{key: line.get(key) for key in ("speaker", *IDS)}}
    return there == here


def escaped(key: str) -> str:
    """A payload's key as the server's metadata may have it."""
    return ESCAPE + key if key in RESERVED or key.startswith(ESCAPE) else key


def _ids(fact: Fact) -> dict[str, object]:
    """The fact's agent and run, None where it has none."""
    return {key: getattr(fact, key, None) for key in IDS}


def _unescaped(key: str) -> str:
    return key.removeprefix(ESCAPE)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
