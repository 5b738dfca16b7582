"""The async client: a thin shell; requests, decisions and parsing live in pure modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Unpack, overload

from inferscale_sdk import _chat, _memory_calls, _transport
from inferscale_sdk._chat import BoundChatOptions, ChatOptions, MemoryOptions
from inferscale_sdk._chat_models import ChatResponse
from inferscale_sdk._config import DEFAULT_MAX_RETRIES, load_config
from inferscale_sdk._errors import APIConnectionError, InternalServerError
from inferscale_sdk._memories import AsyncMemories
from inferscale_sdk._memory_models import Footprint, Status
from inferscale_sdk._stream import AsyncChatStream
from inferscale_sdk._transport import AsyncHttpClient, AsyncTransport, Timeout
from inferscale_sdk._user import AsyncUserClient
from inferscale_sdk._users import AsyncUsers


class AsyncInferScaleClient:
    """A client of one InferScale server. For one event loop.

    `base_url`: default INFERSCALE_BASE_URL, else http://127.0.0.1:8000.
    `api_key`: default INFERSCALE_API_KEY, else none.
    `timeout`: seconds for one try, or an httpx.Timeout; default 600 for chats and adds, 30 for the rest.
    `max_retries`: further tries after broken connections, 408, 409, 429 and 5xx, except 507 and a 409 that lasts.
    `http_client`: your own httpx client; it stays yours to close. Nothing is sent before the first call.
    Raises ValueError or TypeError for an option that cannot work.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | Timeout | None = None,
        max_retries: int = DEFAULT_MAX_RETRIES,
        http_client: AsyncHttpClient | None = None,
        default_headers: Mapping[str, str] | None = None,
    ) -> None:
        config = load_config(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
        )
        self._transport = AsyncTransport.build(config, http_client)

    @classmethod
    def _over(cls, transport: AsyncTransport) -> AsyncInferScaleClient:
        client = cls.__new__(cls)
        client._transport = transport
        return client

    def __repr__(self) -> str:
        return f"{type(self).__name__}(base_url={self._transport.config.base_url!r})"

    @property
    def base_url(self) -> str:
        """The server that is asked."""
        return self._transport.config.base_url

    @property
    def memories(self) -> AsyncMemories:
        """Add, find and forget facts."""
        return AsyncMemories(self._transport)

    @property
    def users(self) -> AsyncUsers:
        """Who has facts; for admins."""
        return AsyncUsers(self._transport)

    @overload
    async def chat(
        self,
        user: str,
        query: str | None = None,
        *,
        messages: Sequence[Mapping[str, object]] | None = None,
        session_id: str | None = None,
        stream: Literal[False] = False,
        memory: MemoryOptions | None = None,
        model: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatResponse: ...
    @overload
    async def chat(
        self,
        user: str,
        query: str | None = None,
        *,
        messages: Sequence[Mapping[str, object]] | None = None,
        session_id: str | None = None,
        stream: Literal[True],
        memory: MemoryOptions | None = None,
        model: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncChatStream: ...
    @overload
    async def chat(
        self,
        user: str,
        query: str | None = None,
        *,
        messages: Sequence[Mapping[str, object]] | None = None,
        session_id: str | None = None,
        stream: bool,
        memory: MemoryOptions | None = None,
        model: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatResponse | AsyncChatStream: ...
    async def chat(
        self,
        user: str,
        query: str | None = None,
        *,
        messages: Sequence[Mapping[str, object]] | None = None,
        session_id: str | None = None,
        stream: bool = False,
        memory: MemoryOptions | None = None,
        model: str | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatResponse | AsyncChatStream:
        """Ask the model, with what it remembers of `user`.

        Takes exactly one of `query` (one user message) and `messages` (OpenAI's list). `memory` says how memory serves,
        such as `{"mode": "text", "k": 5}`; `model` is the server's own where not given. `options` are OpenAI's fields
        (temperature, max_tokens, tools, response_format, …), `extra_body` for all others, `extra_headers`, `timeout`.
        With `stream=True` the result is an AsyncChatStream: `async with await client.chat(…, stream=True) as s`.
        Raises APIError; TypeError or ValueError for bad arguments.
        """
        bound: BoundChatOptions = {
            "messages": messages,
            "session_id": session_id,
            "memory": memory,
            "model": model,
            **options,
        }
        return await self._chat(user, query, stream, bound)

    async def _chat(
        self, user: str, query: str | None, stream: bool, options: BoundChatOptions
    ) -> ChatResponse | AsyncChatStream:
        call = _chat.build(user, query, stream=stream, options=options)
        if stream:
            return AsyncChatStream(await self._transport.open(call.request))
        return await self._transport.call(call)

    def for_user(self, user: str) -> AsyncUserClient:
        """The same methods bound to one user. Raises TypeError, ValueError for a bad user."""
        return AsyncUserClient(self, user)

    def with_options(
        self, *, timeout: float | Timeout | None = None, max_retries: int | None = None
    ) -> AsyncInferScaleClient:
        """A copy with other options over the same connections, this client's to close. Raises as the client."""
        return self._over(_transport.with_options(self._transport, timeout=timeout, max_retries=max_retries))

    async def footprint(self, user: str) -> Footprint:
        """What the user's memory takes: facts, tokens, bytes per tier. Raises APIError; ValueError for a bad user."""
        return await self._transport.call(_memory_calls.footprint(user))

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of texts by the embedder that finds facts, of length 1. Raises APIError; TypeError for one string."""
        return await self._transport.call(_memory_calls.embed(texts))

    async def status(self) -> Status:
        """What the server says about itself: model, fingerprint, gate, tiers. Raises APIError."""
        return await self._transport.call(_memory_calls.status())

    async def ready(self) -> bool:
        """Whether the server takes work now, asked once: False while it starts, fails or cannot be reached.

        Raises APIStatusError for any other refusal, such as a wrong key.
        """
        try:
            await self.with_options(max_retries=0)._transport.call(_memory_calls.ready())
        except (APIConnectionError, InternalServerError):
            return False
        return True

    async def close(self) -> None:
        """Close the connections, unless they belong to an `http_client` of yours."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncInferScaleClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
