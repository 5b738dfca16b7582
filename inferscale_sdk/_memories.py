"""The memories of users: thin shells, sync and async, over `_memory_calls`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Never

from inferscale_sdk import _memory_calls, _transfer
from inferscale_sdk._export import AsyncFactExport, FactExport
from inferscale_sdk._memory_calls import NOT_GIVEN, FactInput, Filter, NotGiven, Timestamp
from inferscale_sdk._memory_models import (
    AddResult,
    DeleteResult,
    Fact,
    FactHistory,
    Footprint,
    ImportResult,
    SearchResult,
    Slice,
)
from inferscale_sdk._page import AsyncFactPage, FactPage, Listing
from inferscale_sdk._raw import AsyncMemoriesWithRawResponse, MemoriesWithRawResponse
from inferscale_sdk._request import Call
from inferscale_sdk._transfer import FactLine, Tally
from inferscale_sdk._transport import AsyncTransport, Transport
from inferscale_sdk._waiting import EncodeWait


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
    ) -> AddResult:
        """Remember facts (texts, or FactInput dicts), or what messages say.

        Takes exactly one of `facts` and `messages`. Returns once all of it is committed, with one outcome a fact.
        `timestamp` (a datetime with a time zone, Unix seconds or ISO 8601 text), `session_id`, `metadata` and
        `expires_at` (when to forget) hold for what names none of its own, and so do `agent_id` and `run_id`, by which
        facts can be listed, searched and deleted. A model makes facts of messages, unless `infer` is False.
        An `idempotency_key` of your own makes a repeat of the whole call safe; tries within one call share one anyway.
        """
        call = _memory_calls.add(
            user,
            *misplaced,
            facts=facts,
            messages=messages,
            session_id=session_id,
            timestamp=timestamp,
            metadata=metadata,
            expires_at=expires_at,
            infer=infer,
            agent_id=agent_id,
            run_id=run_id,
            idempotency_key=idempotency_key,
        )
        return self._transport.call(call)

    def search(
        self,
        user: str,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        k: int | None = None,
        min_score: float | None = None,
        filter: Filter | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> SearchResult:
        """At most `k` facts of the user, best first, leaving out cosine similarities below `min_score` (-1 to 1).

        Takes exactly one of `query` and `vector`, as many numbers as the server's embedder gives for a text.
        `filter` leaves out the rest before they are ranked: `{"topic": "pets"}` or `{"year": {"gte": 2024}}` over
        metadata and the fact's own fields, combined by `and`, `or` and `not`; so do `agent_id` and `run_id`.
        """
        scope = {"agent_id": agent_id, "run_id": run_id}
        call = _memory_calls.search(user, query, vector=vector, k=k, min_score=min_score, filter=filter, **scope)
        return self._transport.call(call)

    def list(
        self,
        user: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        filter: Filter | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> FactPage:
        """The user's facts, oldest first, `limit` a page; iterating the page goes on over all later ones."""
        scope = {"agent_id": agent_id, "run_id": run_id}

        def page(at: str | None) -> Call[Slice[Fact]]:
            return _memory_calls.list_page(user, limit=limit, cursor=at, filter=filter, **scope)

        return FactPage.fetch(self._transport, Listing(page, cursor))

    def get(self, id: str, user: str) -> Fact:
        """One fact. Raises NotFoundError if this owner has none of that id."""
        return self._transport.call(_memory_calls.get(id, user))

    def update(
        self,
        id: str,
        user: str,
        *,
        text: str | None = None,
        metadata: Mapping[str, object] | None = None,
        timestamp: Timestamp | NotGiven | None = NOT_GIVEN,
        expires_at: Timestamp | NotGiven | None = NOT_GIVEN,
        speaker: str | NotGiven | None = NOT_GIVEN,
        session_id: str | NotGiven | None = NOT_GIVEN,
    ) -> Fact:
        """Change one fact and return it; what is not given stays.

        `metadata` is merged, and a None in it removes its key; None for `timestamp`, `speaker` or `session_id` removes
        it, `expires_at=None` keeps the fact for good. Raises NotFoundError if this owner has none of that id,
        ConflictError if another fact of this owner says the same.
        """
        call = _memory_calls.update(
            id,
            user,
            text=text,
            metadata=metadata,
            timestamp=timestamp,
            expires_at=expires_at,
            speaker=speaker,
            session_id=session_id,
        )
        return self._transport.call(call)

    def history(self, id: str, user: str) -> FactHistory:
        """What happened to one fact, oldest first; of a deleted one only that it was, not what it said.

        Raises NotFoundError if this owner never had one of that id.
        """
        return self._transport.call(_memory_calls.history(id, user))

    def delete(self, id: str, user: str) -> DeleteResult:
        """Forget one fact. Raises NotFoundError if this owner has none of that id (any more)."""
        return self._transport.call(_memory_calls.delete(id, user))

    def delete_all(self, user: str, *, agent_id: str | None = None, run_id: str | None = None) -> DeleteResult:
        """Forget all facts of the user, or those of this agent and this run."""
        return self._transport.call(_memory_calls.delete_all(user, agent_id=agent_id, run_id=run_id))

    def export(self, user: str) -> FactExport:
        """All facts of the user, streamed, oldest first: text, metadata and times. Iterate the result."""
        return FactExport(self._transport.open(_transfer.export_request(user)))

    def import_(self, user: str, facts: Iterable[FactLine]) -> ImportResult:
        """Store facts with their ids and times, in batches: Facts, dicts of fields, or lines of an export (bytes).

        What is there already is a duplicate, so a broken import can simply be run again.
        """
        tally = Tally()
        for batch in _transfer.batches(user, facts):
            tally.add(batch, self._transport.call(batch.call))
        return tally.result()

    def wait_encoded(
        self, user: str, timeout: float = 120.0, on_progress: Callable[[Footprint], None] | None = None
    ) -> Footprint:
        """Wait until no fact of the user is without KV, or `timeout` seconds: then APITimeoutError.

        `on_progress` is called after each look; `queued` of what it gets is how many facts still wait.
        """
        wait = EncodeWait(time.monotonic(), timeout)
        while True:
            seen = self._transport.call(_memory_calls.footprint(user))
            if on_progress is not None:
                on_progress(seen)
            pause_s = wait.pause_s(seen, time.monotonic())
            if pause_s is None:
                return seen
            self._transport.sleep(pause_s)


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
    ) -> AddResult:
        """Remember facts (texts, or FactInput dicts), or what messages say.

        Takes exactly one of `facts` and `messages`. Returns once all of it is committed, with one outcome a fact.
        `timestamp` (a datetime with a time zone, Unix seconds or ISO 8601 text), `session_id`, `metadata` and
        `expires_at` (when to forget) hold for what names none of its own, and so do `agent_id` and `run_id`, by which
        facts can be listed, searched and deleted. A model makes facts of messages, unless `infer` is False.
        An `idempotency_key` of your own makes a repeat of the whole call safe; tries within one call share one anyway.
        """
        call = _memory_calls.add(
            user,
            *misplaced,
            facts=facts,
            messages=messages,
            session_id=session_id,
            timestamp=timestamp,
            metadata=metadata,
            expires_at=expires_at,
            infer=infer,
            agent_id=agent_id,
            run_id=run_id,
            idempotency_key=idempotency_key,
        )
        return await self._transport.call(call)

    async def search(
        self,
        user: str,
        query: str | None = None,
        *,
        vector: Sequence[float] | None = None,
        k: int | None = None,
        min_score: float | None = None,
        filter: Filter | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> SearchResult:
        """At most `k` facts of the user, best first, leaving out cosine similarities below `min_score` (-1 to 1).

        Takes exactly one of `query` and `vector`, as many numbers as the server's embedder gives for a text.
        `filter` leaves out the rest before they are ranked: `{"topic": "pets"}` or `{"year": {"gte": 2024}}` over
        metadata and the fact's own fields, combined by `and`, `or` and `not`; so do `agent_id` and `run_id`.
        """
        scope = {"agent_id": agent_id, "run_id": run_id}
        call = _memory_calls.search(user, query, vector=vector, k=k, min_score=min_score, filter=filter, **scope)
        return await self._transport.call(call)

    async def list(
        self,
        user: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        filter: Filter | None = None,
        agent_id: str | None = None,
        run_id: str | None = None,
    ) -> AsyncFactPage:
        """The user's facts, oldest first, `limit` a page; iterating the page goes on over all later ones."""
        scope = {"agent_id": agent_id, "run_id": run_id}

        def page(at: str | None) -> Call[Slice[Fact]]:
            return _memory_calls.list_page(user, limit=limit, cursor=at, filter=filter, **scope)

        return await AsyncFactPage.fetch(self._transport, Listing(page, cursor))

    async def get(self, id: str, user: str) -> Fact:
        """One fact. Raises NotFoundError if this owner has none of that id."""
        return await self._transport.call(_memory_calls.get(id, user))

    async def update(
        self,
        id: str,
        user: str,
        *,
        text: str | None = None,
        metadata: Mapping[str, object] | None = None,
        timestamp: Timestamp | NotGiven | None = NOT_GIVEN,
        expires_at: Timestamp | NotGiven | None = NOT_GIVEN,
        speaker: str | NotGiven | None = NOT_GIVEN,
        session_id: str | NotGiven | None = NOT_GIVEN,
    ) -> Fact:
        """Change one fact and return it; what is not given stays.

        `metadata` is merged, and a None in it removes its key; None for `timestamp`, `speaker` or `session_id` removes
        it, `expires_at=None` keeps the fact for good. Raises NotFoundError if this owner has none of that id,
        ConflictError if another fact of this owner says the same.
        """
        call = _memory_calls.update(
            id,
            user,
            text=text,
            metadata=metadata,
            timestamp=timestamp,
            expires_at=expires_at,
            speaker=speaker,
            session_id=session_id,
        )
        return await self._transport.call(call)

    async def history(self, id: str, user: str) -> FactHistory:
        """What happened to one fact, oldest first; of a deleted one only that it was, not what it said.

        Raises NotFoundError if this owner never had one of that id.
        """
        return await self._transport.call(_memory_calls.history(id, user))

    async def delete(self, id: str, user: str) -> DeleteResult:
        """Forget one fact. Raises NotFoundError if this owner has none of that id (any more)."""
        return await self._transport.call(_memory_calls.delete(id, user))

    async def delete_all(self, user: str, *, agent_id: str | None = None, run_id: str | None = None) -> DeleteResult:
        """Forget all facts of the user, or those of this agent and this run."""
        return await self._transport.call(_memory_calls.delete_all(user, agent_id=agent_id, run_id=run_id))

    async def export(self, user: str) -> AsyncFactExport:
        """All facts of the user, streamed, oldest first: text, metadata and times. Iterate the result."""
        return AsyncFactExport(await self._transport.open(_transfer.export_request(user)))

    async def import_(self, user: str, facts: Iterable[FactLine]) -> ImportResult:
        """Store facts with their ids and times, in batches: Facts, dicts of fields, or lines of an export (bytes).

        What is there already is a duplicate, so a broken import can simply be run again.
        """
        tally = Tally()
        for batch in _transfer.batches(user, facts):
            tally.add(batch, await self._transport.call(batch.call))
        return tally.result()

    async def wait_encoded(
        self,
        user: str,
        timeout: float = 120.0,  # noqa: ASYNC109
        on_progress: Callable[[Footprint], None] | None = None,
    ) -> Footprint:
        """Wait until no fact of the user is without KV, or `timeout` seconds: then APITimeoutError.

        `on_progress` is called after each look; `queued` of what it gets is how many facts still wait.
        """
        wait = EncodeWait(time.monotonic(), timeout)
        while True:
            seen = await self._transport.call(_memory_calls.footprint(user))
            if on_progress is not None:
                on_progress(seen)
            pause_s = wait.pause_s(seen, time.monotonic())
            if pause_s is None:
                return seen
            await self._transport.sleep(pause_s)
