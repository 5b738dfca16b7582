"""The memories of users: thin shells, sync and async, over `_memory_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inferscale_sdk import _memory_calls
from inferscale_sdk._memory_calls import FactInput, Timestamp
from inferscale_sdk._memory_models import AddResult, DeleteResult, Fact, SearchResult
from inferscale_sdk._page import AsyncFactPage, FactPage, Listing, fetch, fetch_async
from inferscale_sdk._raw import AsyncMemoriesWithRawResponse, MemoriesWithRawResponse
from inferscale_sdk._transport import AsyncTransport, Transport


class Memories:
    """Add, find and forget facts. All methods raise APIError, and ValueError or TypeError for bad arguments."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def with_raw_response(self) -> MemoriesWithRawResponse:
        """The same methods, returning headers and status with the parsed result behind `.parse()`."""
        return MemoriesWithRawResponse(self._transport)

    def add(
        self,
        user: str,
        *,
        facts: Sequence[str | FactInput] | None = None,
        messages: Sequence[Mapping[str, object]] | None = None,
        session_id: str | None = None,
        timestamp: Timestamp | None = None,
        metadata: Mapping[str, object] | None = None,
        infer: bool | None = None,
        idempotency_key: str | None = None,
    ) -> AddResult:
        """Remember facts (texts, or FactInput dicts), or what messages say.

        Takes exactly one of `facts` and `messages`. Returns once all of it is committed, with one outcome a fact.
        `timestamp` (a datetime with a time zone, Unix seconds or ISO 8601 text), `session_id` and `metadata` hold for
        what names none of its own.
        An `idempotency_key` of your own makes a repeat of the whole call safe; tries within one call share one anyway.
        """
        call = _memory_calls.add(
            user,
            facts=facts,
            messages=messages,
            session_id=session_id,
            timestamp=timestamp,
            metadata=metadata,
            infer=infer,
            idempotency_key=idempotency_key,
        )
        return self._transport.call(call)

    def search(self, user: str, query: str, *, k: int | None = None, min_score: float | None = None) -> SearchResult:
        """At most `k` facts of the user, best first, leaving out cosine similarities below `min_score` (-1 to 1)."""
        return self._transport.call(_memory_calls.search(user, query, k=k, min_score=min_score))

    def list(self, user: str, *, limit: int | None = None, cursor: str | None = None) -> FactPage:
        """The user's facts, oldest first, `limit` a page; iterating the page goes on over all later ones."""
        return fetch(self._transport, Listing(user, limit, cursor))

    def get(self, id: str, user: str | None = None) -> Fact:
        """One fact. Raises NotFoundError if this owner has none of that id."""
        return self._transport.call(_memory_calls.get(id, user))

    def delete(self, id: str, user: str | None = None) -> DeleteResult:
        """Forget one fact. Raises NotFoundError if this owner has none of that id (any more)."""
        return self._transport.call(_memory_calls.delete(id, user))

    def delete_all(self, user: str) -> DeleteResult:
        """Forget all facts of the user."""
        return self._transport.call(_memory_calls.delete_all(user))


class AsyncMemories:
    """Add, find and forget facts. All methods raise APIError, and ValueError or TypeError for bad arguments."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    @property
    def with_raw_response(self) -> AsyncMemoriesWithRawResponse:
        """The same methods, returning headers and status with the parsed result behind `.parse()`."""
        return AsyncMemoriesWithRawResponse(self._transport)

    async def add(
        self,
        user: str,
        *,
        facts: Sequence[str | FactInput] | None = None,
        messages: Sequence[Mapping[str, object]] | None = None,
        session_id: str | None = None,
        timestamp: Timestamp | None = None,
        metadata: Mapping[str, object] | None = None,
        infer: bool | None = None,
        idempotency_key: str | None = None,
    ) -> AddResult:
        """Remember facts (texts, or FactInput dicts), or what messages say.

        Takes exactly one of `facts` and `messages`. Returns once all of it is committed, with one outcome a fact.
        `timestamp` (a datetime with a time zone, Unix seconds or ISO 8601 text), `session_id` and `metadata` hold for
        what names none of its own.
        An `idempotency_key` of your own makes a repeat of the whole call safe; tries within one call share one anyway.
        """
        call = _memory_calls.add(
            user,
            facts=facts,
            messages=messages,
            session_id=session_id,
            timestamp=timestamp,
            metadata=metadata,
            infer=infer,
            idempotency_key=idempotency_key,
        )
        return await self._transport.call(call)

    async def search(
        self, user: str, query: str, *, k: int | None = None, min_score: float | None = None
    ) -> SearchResult:
        """At most `k` facts of the user, best first, leaving out cosine similarities below `min_score` (-1 to 1)."""
        return await self._transport.call(_memory_calls.search(user, query, k=k, min_score=min_score))

    async def list(self, user: str, *, limit: int | None = None, cursor: str | None = None) -> AsyncFactPage:
        """The user's facts, oldest first, `limit` a page; iterating the page goes on over all later ones."""
        return await fetch_async(self._transport, Listing(user, limit, cursor))

    async def get(self, id: str, user: str | None = None) -> Fact:
        """One fact. Raises NotFoundError if this owner has none of that id."""
        return await self._transport.call(_memory_calls.get(id, user))

    async def delete(self, id: str, user: str | None = None) -> DeleteResult:
        """Forget one fact. Raises NotFoundError if this owner has none of that id (any more)."""
        return await self._transport.call(_memory_calls.delete(id, user))

    async def delete_all(self, user: str) -> DeleteResult:
        """Forget all facts of the user."""
        return await self._transport.call(_memory_calls.delete_all(user))
