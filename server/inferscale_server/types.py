"""The words of the server: frozen values that every layer passes around.

Knows: what a fact, an owner and a hit are. Refuses to know: where they are stored, how they are served.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Mode = Literal["auto", "kv", "text", "off"]
ServedMode = Literal["kv", "text", "off"]
AddStatus = Literal["stored", "duplicate", "superseded", "failed"]
FactOrder = Literal["best_last", "best_first", "oldest_first"]
EventKind = Literal["added", "updated", "deleted", "expired", "superseded"]

LOCAL_TENANT = "local"
"""The tenant of a server without API keys."""


class Unset(enum.Enum):
    """The type of UNSET: a field that a change does not name, where None means "remove it"."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom a fact belongs to: always a (tenant, user) pair, never a joined string.

    `adapter` is only for KV: the fingerprint of model and LoRA adapter together when the same facts are read through
    one. Their KV is another's for whoever looks for it; the facts, and the folder of files, are the owner's.
    """

    tenant: str
    user: str
    adapter: str = ""

    @property
    def itself(self) -> Owner:
        """The owner of the facts, through whatever they are read."""
        return Owner(self.tenant, self.user) if self.adapter else self

    def digest(self) -> str:
        """64 hex characters, whatever the adapter; length-prefixed, so that ("a", "b/c") and ("a/b", "c") differ."""
        sha = hashlib.sha256(b"inferscale-owner")
        for part in (self.tenant, self.user):
            raw = part.encode("utf-8", "surrogatepass")
            sha.update(len(raw).to_bytes(8, "big"))
            sha.update(raw)
        return sha.hexdigest()


@dataclass(frozen=True, slots=True)
class FactDraft:
    """A fact before it has an id. It was said at `occurred_at` and ends at `expires_at`, in Unix seconds (UTC)."""

    text: str
    speaker: str | None = None
    occurred_at: float | None = None
    session_id: str | None = None
    metadata: Mapping[str, object] = field(default_factory=dict)
    expires_at: float | None = None
    agent_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which agent and which run of it a fact belongs to, or a question is about; None: of any.

    Scopes filter within one owner's facts; they keep nobody out.
    """

    agent_id: str | None = None
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Successor:
    """Number `draft` of the drafts of one add takes the place of the fact `old_id`."""

    old_id: str
    draft: int


@dataclass(frozen=True, slots=True)
class ImportedFact(FactDraft):
    """A fact that was exported before. None for an id or a time: as for a new fact."""

    id: str | None = None
    created_at: float | None = None
    updated_at: float | None = None


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
    updated_at: float = 0.0
    expires_at: float | None = None
    agent_id: str | None = None
    run_id: str | None = None

    def expired(self, now: float) -> bool:
        """Has its time come? Then it does not exist any more, whether or not it was swept."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class FactChange:
    """What an update names: a text, keys of the metadata (a None value removes the key), and what None removes."""

    text: str | None = None
    metadata: Mapping[str, object] | None = None
    expires_at: float | Unset | None = UNSET
    occurred_at: float | Unset | None = UNSET
    speaker: str | Unset | None = UNSET
    session_id: str | Unset | None = UNSET


@dataclass(frozen=True, slots=True)
class FactEvent:
    """An event of a fact's life, in Unix seconds, and what was known since then: None once the fact is deleted.

    A superseded fact says nothing from that event on, but what it said before is kept.
    """

    event: EventKind
    at: float
    text: str | None
    metadata: Mapping[str, object] | None
    speaker: str | None = None
    occurred_at: float | None = None
    session_id: str | None = None


FactHistory = tuple[FactEvent, ...]
"""All events of one fact, oldest first."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The name that a client gave to one write, and a digest of that write's body: same key, same body."""

    key: str
    body_digest: str


@dataclass(frozen=True, slots=True)
class AddOutcome:
    """What became of one draft: the id of the stored fact, or of the one it duplicates.

    With status `superseded`: what became of an older fact, whose place a draft of the same request took.
    """

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
class UserCount:
    """A user of a tenant and how many facts are stored for them."""

    user: str
    facts: int


@dataclass(frozen=True, slots=True)
class UserPage:
    """One page of a tenant's users who have facts, by name; `next_cursor` is None on the last."""

    users: tuple[UserCount, ...]
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
