"""Pages of facts that fetch the next one when iterated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace

from inferscale_sdk._errors import APIResponseValidationError
from inferscale_sdk._memory_calls import list_page
from inferscale_sdk._memory_models import Fact, FactSlice
from inferscale_sdk._request import Call
from inferscale_sdk._transport import AsyncTransport, Transport


@dataclass(frozen=True, slots=True)
class Listing:
    """Which page of whose facts."""

    user: str
    limit: int | None
    cursor: str | None

    def call(self) -> Call[FactSlice]:
        """The request for this page. Raises TypeError, ValueError for a bad user."""
        return list_page(self.user, limit=self.limit, cursor=self.cursor)


@dataclass(frozen=True, slots=True)
class _Page:
    listing: Listing
    slice: FactSlice

    @property
    def data(self) -> tuple[Fact, ...]:
        """The facts of this page alone, oldest first."""
        return self.slice.data

    @property
    def next_cursor(self) -> str | None:
        """Where the next page begins, None on the last."""
        return self.slice.next_cursor

    @property
    def has_more(self) -> bool:
        """Whether the server has another page."""
        return self.slice.has_more

    @property
    def request_id(self) -> str | None:
        """The server's `x-request-id`."""
        return self.slice.request_id

    def has_next_page(self) -> bool:
        """Whether `get_next_page` has one to get."""
        return self.has_more and self.next_cursor is not None

    def _next(self) -> Listing:
        if not self.has_next_page():
            raise ValueError("this is the last page; ask has_next_page() first")
        if self.next_cursor == self.listing.cursor:
            # Following it would never end.
            raise APIResponseValidationError(
                "unexpected answer: the next page is this page", request_id=self.request_id
            )
        return replace(self.listing, cursor=self.next_cursor)


@dataclass(frozen=True, slots=True)
class FactPage(_Page):
    """One page; iterating goes on over all later pages."""

    _transport: Transport

    def get_next_page(self) -> FactPage:
        """The page after this. Raises ValueError on the last one, else APIError."""
        return fetch(self._transport, self._next())

    def __iter__(self) -> Iterator[Fact]:
        page = self
        yield from page.data
        while page.has_next_page():
            page = page.get_next_page()
            yield from page.data


@dataclass(frozen=True, slots=True)
class AsyncFactPage(_Page):
    """One page; iterating (`async for`) goes on over all later pages."""

    _transport: AsyncTransport

    async def get_next_page(self) -> AsyncFactPage:
        """The page after this. Raises ValueError on the last one, else APIError."""
        return await fetch_async(self._transport, self._next())

    async def __aiter__(self) -> AsyncIterator[Fact]:
        page = self
        for fact in page.data:
            yield fact
        while page.has_next_page():
            page = await page.get_next_page()
            for fact in page.data:
                yield fact


def fetch(transport: Transport, listing: Listing) -> FactPage:
    """Get one page. Raises TypeError, ValueError for a bad user, else APIError."""
    return FactPage(listing, transport.call(listing.call()), transport)


async def fetch_async(transport: AsyncTransport, listing: Listing) -> AsyncFactPage:
    """Get one page. Raises TypeError, ValueError for a bad user, else APIError."""
    return AsyncFactPage(listing, await transport.call(listing.call()), transport)
