"""Results of the memory routes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Generic, TypeVar

from pydantic import AliasChoices, Field

from inferscale_sdk._wire import Wire

T = TypeVar("T")


class Fact(Wire):
    """A remembered sentence. Times in UTC: `timestamp` is when it was said, `created_at` and `updated_at` when it was
    stored and last changed, `expires_at` when it will be forgotten (None: never)."""

    id: str
    text: str
    speaker: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    timestamp: datetime | None = None
    metadata: dict[str, object] = Field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    expires_at: datetime | None = None


class Hit(Fact):
    """A fact that a search found. `score` is its cosine similarity to the query, -1 to 1."""

    score: float


class SearchResult(Wire):
    """What a search found, best first. Iterates over its hits."""

    hits: tuple[Hit, ...] = Field(validation_alias=AliasChoices("data", "hits"))

    def __iter__(self) -> Iterator[Hit]:  # type: ignore[override]
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, position: int) -> Hit:
        return self.hits[position]


class AddOutcome(Wire):
    """What became of one fact: `status` is stored, duplicate, superseded or failed; `id` of the fact that now holds.

    Superseded is an older fact whose place one of this add took: `id` and `text` are the older one's.
    """

    id: str | None = None
    text: str = ""
    status: str
    reason: str | None = None


class AddResult(Wire):
    """What became of each fact of one add, in order; all of it is on disk. Iterates over its outcomes."""

    results: tuple[AddOutcome, ...]

    def __iter__(self) -> Iterator[AddOutcome]:  # type: ignore[override]
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, position: int) -> AddOutcome:
        return self.results[position]

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the facts that hold what was added, without the failed ones and those that were superseded."""
        holding = (outcome for outcome in self.results if outcome.status != "superseded")
        return tuple(outcome.id for outcome in holding if outcome.id is not None)


class Slice(Wire, Generic[T]):
    """One page as it is on the wire."""

    data: tuple[T, ...]
    next_cursor: str | None = None
    has_more: bool = False


class FactSlice(Slice[Fact]):
    """One page of facts, oldest first."""


class UserCount(Wire):
    """A user that has facts, and how many."""

    user_id: str
    facts: int


class UserSlice(Slice[UserCount]):
    """One page of users."""


class FactEvent(Wire):
    """What happened to a fact: `event` is added, updated, deleted, expired or superseded, `at` is when (UTC).

    The others are what the fact was since then; None for all events once the fact is gone.
    """

    event: str
    at: datetime
    text: str | None = None
    speaker: str | None = None
    timestamp: datetime | None = None
    session_id: str | None = None
    metadata: dict[str, object] | None = None


class FactHistory(Wire):
    """The life of one fact, oldest event first. Iterates over its events."""

    id: str
    events: tuple[FactEvent, ...] = Field(validation_alias=AliasChoices("data", "events"))

    def __iter__(self) -> Iterator[FactEvent]:  # type: ignore[override]
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, position: int) -> FactEvent:
        return self.events[position]


class FailedLine(Wire):
    """A line of an import that was not stored, counted from 1, and why."""

    line: int
    reason: str


class ImportResult(Wire):
    """What became of an import: facts stored, facts that were there already, and lines that failed.

    `new_ids` of those stored have another id than in the file, because theirs is or was somebody else's.
    """

    imported: int = 0
    duplicates: int = 0
    failed: tuple[FailedLine, ...] = ()
    new_ids: int = 0


class DeleteResult(Wire):
    """What was deleted: True for one fact, their number for all of a user's."""

    id: str | None = None
    deleted: bool | int = True


class Footprint(Wire):
    """What one user's memory takes: facts, tokens, and bytes per tier (device, host, disk, facts, index).

    `queued` is how many facts wait for their KV; until then they are served as text. `encoded` have it; None where the
    server does not tell.
    """

    facts: int
    tokens: int | None = None
    encoded: int | None = None
    queued: int = 0
    bytes: dict[str, int] = Field(default_factory=dict)


class Embedding(Wire):
    """One text's vector, of length 1."""

    embedding: list[float]


class Embeddings(Wire):
    """Vectors in the order of their texts; `model` names the embedder."""

    data: list[Embedding]
    model: str | None = None


class Status(Wire):
    """What a server says about itself. Fields that are not named here are kept as attributes."""

    model: str | None = None
    fingerprint: str | None = None
