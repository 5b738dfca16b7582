"""A client bound to one user: the same methods without the user argument."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, Unpack, overload

from inferscale_sdk._chat import BoundChatOptions
from inferscale_sdk._chat_models import ChatResponse
from inferscale_sdk._memory_models import Footprint
from inferscale_sdk._owner import check_id
from inferscale_sdk._stream import AsyncChatStream, ChatStream

if TYPE_CHECKING:
    from inferscale_sdk._async_client import AsyncInferScaleClient
    from inferscale_sdk._client import InferScaleClient
    from inferscale_sdk._memories import AsyncMemories, Memories


class UserMemories:
    """`client.memories` of one user."""

    def __init__(self, memories: Memories, user: str) -> None:
        self.add = partial(memories.add, user)
        self.search = partial(memories.search, user)
        self.list = partial(memories.list, user)
        self.get = partial(memories.get, user=user)
        self.update = partial(memories.update, user=user)
        self.history = partial(memories.history, user=user)
        self.delete = partial(memories.delete, user=user)
        self.delete_all = partial(memories.delete_all, user)
        self.export = partial(memories.export, user)
        self.import_ = partial(memories.import_, user)
        self.wait_encoded = partial(memories.wait_encoded, user)


class UserClient:
    """Chat and memories of one user, over the connections of `client`. Raises TypeError, ValueError for a bad user."""

    def __init__(self, client: InferScaleClient, user: str) -> None:
        self._client = client
        self.user = check_id(user)
        self.memories = UserMemories(client.memories, user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @overload
    def chat(
        self, query: str | None = None, *, stream: Literal[False] = False, **options: Unpack[BoundChatOptions]
    ) -> ChatResponse: ...
    @overload
    def chat(
        self, query: str | None = None, *, stream: Literal[True], **options: Unpack[BoundChatOptions]
    ) -> ChatStream: ...
    @overload
    def chat(
        self, query: str | None = None, *, stream: bool, **options: Unpack[BoundChatOptions]
    ) -> ChatResponse | ChatStream: ...
    def chat(
        self, query: str | None = None, *, stream: bool = False, **options: Unpack[BoundChatOptions]
    ) -> ChatResponse | ChatStream:
        """Ask, with this user's memory; see `InferScaleClient.chat`."""
        return self._client._chat(self.user, query, stream, options)

    def footprint(self) -> Footprint:
        """What this user's memory takes."""
        return self._client.footprint(self.user)


class AsyncUserMemories:
    """`client.memories` of one user."""

    def __init__(self, memories: AsyncMemories, user: str) -> None:
        self.add = partial(memories.add, user)
        self.search = partial(memories.search, user)
        self.list = partial(memories.list, user)
        self.get = partial(memories.get, user=user)
        self.update = partial(memories.update, user=user)
        self.history = partial(memories.history, user=user)
        self.delete = partial(memories.delete, user=user)
        self.delete_all = partial(memories.delete_all, user)
        self.export = partial(memories.export, user)
        self.import_ = partial(memories.import_, user)
        self.wait_encoded = partial(memories.wait_encoded, user)


class AsyncUserClient:
    """Chat and memories of one user, over the connections of `client`. Raises TypeError, ValueError for a bad user."""

    def __init__(self, client: AsyncInferScaleClient, user: str) -> None:
        self._client = client
        self.user = check_id(user)
        self.memories = AsyncUserMemories(client.memories, user)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user!r})"

    @overload
    async def chat(
        self, query: str | None = None, *, stream: Literal[False] = False, **options: Unpack[BoundChatOptions]
    ) -> ChatResponse: ...
    @overload
    async def chat(
        self, query: str | None = None, *, stream: Literal[True], **options: Unpack[BoundChatOptions]
    ) -> AsyncChatStream: ...
    @overload
    async def chat(
        self, query: str | None = None, *, stream: bool, **options: Unpack[BoundChatOptions]
    ) -> ChatResponse | AsyncChatStream: ...
    async def chat(
        self, query: str | None = None, *, stream: bool = False, **options: Unpack[BoundChatOptions]
    ) -> ChatResponse | AsyncChatStream:
        """Ask, with this user's memory; see `AsyncInferScaleClient.chat`."""
        return await self._client._chat(self.user, query, stream, options)

    async def footprint(self) -> Footprint:
        """What this user's memory takes."""
        return await self._client.footprint(self.user)
