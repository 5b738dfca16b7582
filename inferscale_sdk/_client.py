"""The sync client: a thin shell; requests, decisions and parsing live in pure modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Unpack, overload

from inferscale_sdk import _chat, _memory_calls, _transport
from inferscale_sdk._chat import BoundChatOptions, ChatOptions, MemoryOptions
from inferscale_sdk._chat_models import ChatResponse
from inferscale_sdk._config import DEFAULT_MAX_RETRIES, load_config
from inferscale_sdk._errors import APIConnectionError, InternalServerError
from inferscale_sdk._memories import Memories
from inferscale_sdk._memory_models import Footprint, Status
from inferscale_sdk._stream import ChatStream
from inferscale_sdk._transport import HttpClient, Timeout, Transport
from inferscale_sdk._user import UserClient
from inferscale_sdk._users import Users


class InferScaleClient:
    """A client of one InferScale server. Safe to share between threads.

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
        http_client: HttpClient | None = None,
        default_headers: Mapping[str, str] | None = None,
    ) -> None:
        config = load_config(
            base_url=base_url,
            api_key=api_key,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
        )
        self._transport = Transport.build(config, http_client)

    @classmethod
    def _over(cls, transport: Transport) -> InferScaleClient:
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
    def memories(self) -> Memories:
        """Add, find and forget facts."""
        return Memories(self._transport)

    @property
    def users(self) -> Users:
        """Who has facts; for admins."""
        return Users(self._transport)

    @overload
    def chat(
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
    def chat(
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
    ) -> ChatStream: ...
    @overload
    def chat(
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
    ) -> ChatResponse | ChatStream: ...
    def chat(
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
    ) -> ChatResponse | ChatStream:
        """Ask the model, with what it remembers of `user`.

        Takes exactly one of `query` (one user message) and `messages` (OpenAI's list). `memory` says how memory serves,
        such as `{"mode": "text", "k": 5}`; `model` is the server's own where not given. `options` are OpenAI's fields
        (temperature, max_tokens, tools, response_format, …), `extra_body` for all others, `extra_headers`, `timeout`.
        With `stream=True` the result is a ChatStream: use it in a `with`, iterate it or its `text_stream`.
        Raises APIError; TypeError or ValueError for bad arguments.
        """
        bound: BoundChatOptions = {
            "messages": messages,
            "session_id": session_id,
            "memory": memory,
            "model": model,
            **options,
        }
        return self._chat(user, query, stream, bound)

    def _chat(self, user: str, query: str | None, stream: bool, options: BoundChatOptions) -> ChatResponse | ChatStream:
        call = _chat.build(user, query, stream=stream, options=options)
        if stream:
            return ChatStream(self._transport.open(call.request))
        return self._transport.call(call)

    def for_user(self, user: str) -> UserClient:
        """The same methods bound to one user. Raises TypeError, ValueError for a bad user."""
        return UserClient(self, user)

    def with_options(
        self, *, timeout: float | Timeout | None = None, max_retries: int | None = None
    ) -> InferScaleClient:
        """A copy with other options over the same connections, this client's to close. Raises as the client."""
        return self._over(_transport.with_options(self._transport, timeout=timeout, max_retries=max_retries))

    def footprint(self, user: str) -> Footprint:
        """What the user's memory takes: facts, tokens, bytes per tier. Raises APIError; ValueError for a bad user."""
        return self._transport.call(_memory_calls.footprint(user))

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Vectors of texts by the embedder that finds facts, of length 1. Raises APIError; TypeError for one string."""
        return self._transport.call(_memory_calls.embed(texts))

    def status(self) -> Status:
        """What the server says about itself: model, fingerprint, gate, tiers. Raises APIError."""
        return self._transport.call(_memory_calls.status())

    def ready(self) -> bool:
        """Whether the server takes work now, asked once: False while it starts, fails or cannot be reached.

        Raises APIStatusError for any other refusal, such as a wrong key.
        """
        try:
            self.with_options(max_retries=0)._transport.call(_memory_calls.ready())
        except (APIConnectionError, InternalServerError):
            return False
        return True

    def close(self) -> None:
        """Close the connections, unless they belong to an `http_client` of yours."""
        self._transport.close()

    def __enter__(self) -> InferScaleClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
