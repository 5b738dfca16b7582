"""The users of a server: thin shells, sync and async, over `_memory_calls`. For keys with the role admin."""

from __future__ import annotations

from inferscale_sdk._memory_calls import users_page
from inferscale_sdk._page import AsyncUserPage, Listing, UserPage
from inferscale_sdk._raw import AsyncUsersWithRawResponse, UsersWithRawResponse
from inferscale_sdk._transport import AsyncTransport, Transport


class Users:
    """Who has facts. All methods raise APIError."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def with_raw_response(self) -> UsersWithRawResponse:
        """The same methods, returning headers and status with the parsed result behind `.parse()`."""
        return UsersWithRawResponse(self._transport)

    def list(self, *, limit: int | None = None, cursor: str | None = None, fact_id: str | None = None) -> UserPage:
        """The users that have facts, with their counts, `limit` a page; iterating goes on over all later pages.

        With `fact_id`, only the user whose fact it is, none if there is no such fact.
        """
        pages = Listing(lambda at: users_page(limit=limit, cursor=at, fact_id=fact_id), cursor)
        return UserPage.fetch(self._transport, pages)


class AsyncUsers:
    """Who has facts. All methods raise APIError."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    @property
    def with_raw_response(self) -> AsyncUsersWithRawResponse:
        """The same methods, returning headers and status with the parsed result behind `.parse()`."""
        return AsyncUsersWithRawResponse(self._transport)

    async def list(
        self, *, limit: int | None = None, cursor: str | None = None, fact_id: str | None = None
    ) -> AsyncUserPage:
        """The users that have facts, with their counts, `limit` a page; iterating goes on over all later pages.

        With `fact_id`, only the user whose fact it is, none if there is no such fact.
        """
        pages = Listing(lambda at: users_page(limit=limit, cursor=at, fact_id=fact_id), cursor)
        return await AsyncUserPage.fetch(self._transport, pages)
