"""Pages that fetch the next one when iterated: of facts, and of users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, Self, TypeVar

from inferscale_sdk._errors import APIResponseValidationError
from inferscale_sdk._memory_models import Fact, Slice, UserCount
from inferscale_sdk._request import Call
from inferscale_sdk._transport import AsyncTransport, Transport

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """Which page of what: `build` makes the request for the page behind a cursor (None: the first)."""

    build: Callable[[str | None], Call[Slice[T]]]
    cursor: str | None

    def call(self) -> Call[Slice[T]]:
        """The request for this page. Raises what `build` raises for bad arguments."""
        return self.build(self.cursor)


@dataclass(frozen=True, slots=True)
class _Page(Generic[T]):
    listing: Listing[T] = field(repr=False)
    slice: Slice[T]

    @property
    def data(self) -> tuple[T, ...]:
        """What stands on this page alone."""
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

    def _next(self) -> Listing[T]:
        if not self.has_next_page():
            raise ValueError("this is the last page; ask has_next_page() first")
        if self.next_cursor == self.listing.cursor:
            # Following it would never end.
            raise APIResponseValidationError(
                "unexpected answer: the next page is this page", request_id=self.request_id
            )
        return replace(self.listing, cursor=self.next_cursor)


@dataclass(frozen=True, slots=True)
class Page(_Page[T]):
    """One page; iterating goes on over all later pages."""

    _transport: Transport = field(repr=False)

    @classmethod
    def fetch(cls, transport: Transport, listing: Listing[T]) -> Self:
        """Get one page. Raises TypeError, ValueError for bad arguments, else APIError."""
        return cls(listing, transport.call(listing.call()), transport)

    def get_next_page(self) -> Self:
        """The page after this. Raises ValueError on the last one, else APIError."""
        return self.fetch(self._transport, self._next())

    def __iter__(self) -> Iterator[T]:
        page = self
        yield from page.data
        while page.has_next_page():
            page = page.get_next_page()
            yield from page.data


@dataclass(frozen=True, slots=True)
class AsyncPage(_Page[T]):
    """One page; iterating (`async for`) goes on over all later pages."""

    _transport: AsyncTransport = field(repr=False)

    @classmethod
    async def fetch(cls, transport: AsyncTransport, listing: Listing[T]) -> Self:
        """Get one page. Raises TypeError, ValueError for bad arguments, else APIError."""
        return cls(listing, await transport.call(listing.call()), transport)

    async def get_next_page(self) -> Self:
        """The page after this. Raises ValueError on the last one, else APIError."""
        return await self.fetch(self._transport, self._next())

    async def __aiter__(self) -> AsyncIterator[T]:
        page = self
        for one in page.data:
            yield one
        while page.has_next_page():
            page = await page.get_next_page()
            for one in page.data:
                yield one


class FactPage(Page[Fact]):
    """A page of one user's facts, oldest first."""


class AsyncFactPage(AsyncPage[Fact]):
    """A page of one user's facts, oldest first."""


class UserPage(Page[UserCount]):
    """A page of users that have facts, with their counts."""


class AsyncUserPage(AsyncPage[UserCount]):
    """A page of users that have facts, with their counts."""
