"""The words of the server: frozen values that every layer passes around.

Knows: what a fact, an owner and a hit are. Refuses to know: where they are stored, how they are served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["auto", "kv", "text", "off"]
ServedMode = Literal["kv", "text", "off"]
AddStatus = Literal["stored", "duplicate", "superseded", "failed"]

LOCAL_TENANT = "local"
"""The tenant of a server without API keys."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a fact belongs to: always a (tenant, user) pair, never a joined string."""

    tenant: str
    user: str

    def digest(self) -> str:
        """64 hex characters; length-prefixed, so that ("a", "b/c") and ("a/b", "c") differ."""
        sha = hashlib.sha256(b"inferscale-owner")
        for part in (self.tenant, self.user):
            raw = part.encode("utf-8", "surrogatepass")
            sha.update(len(raw).to_bytes(8, "big"))
            sha.update(raw)
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A fact before it has an id. `occurred_at` is when it was said, in Unix seconds (UTC)."""

    text: str
    speaker: str | None = None
    occurred_at: float | None = None
    session_id: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fact:
    """A remembered sentence of one owner. `seq` grows with insertion: oldest first. Times in Unix seconds (UTC)."""

    id: str
    owner: Owner
    seq: int
    text: str
    speaker: str | None
    occurred_at: float | None
    session_id: str | None
    metadata: Mapping[str, object]
    created_at: float


@dataclass(frozen=True, slots=True)
class AddOutcome:
    """What became of one draft: the id of the stored fact, or of the one it duplicates."""

    id: str | None
    text: str
    status: AddStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FactPage:
    """One page of an owner's facts, oldest first; `next_cursor` is None on the last."""

    facts: tuple[Fact, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Scored:
    """A fact id with its cosine similarity to the query, -1 … 1."""

    fact_id: str
    score: float


@dataclass(frozen=True, slots=True)
class Hit:
    """A retrieved fact with its cosine similarity to the query."""

    fact: Fact
    score: float
