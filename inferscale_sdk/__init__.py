"""Client of InferScale: chat with a model that remembers each user, and manage what it remembers.

    from inferscale_sdk import InferScaleClient

    with InferScaleClient() as client:
        client.memories.add("alice", facts=["Alice's dog is called Bruno."])
        print(client.chat("alice", "What is the name of Alice's dog?", temperature=0).text)

The one public door: every module behind it is private. Names load on first use, so that a program that only might talk
to a server does not pay for the HTTP stack at start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from inferscale_sdk._version import __version__

if TYPE_CHECKING:
    from inferscale_sdk._async_client import AsyncInferScaleClient
    from inferscale_sdk._chat import BoundChatOptions, ChatOptions, MemoryOptions
    from inferscale_sdk._chat_models import ChatChunk, ChatResponse, InjectedFact, MemoryUse, Message, ToolCall, Usage
    from inferscale_sdk._client import InferScaleClient
    from inferscale_sdk._errors import (
        APIConnectionError,
        APIError,
        APIResponseValidationError,
        APIStatusError,
        APITimeoutError,
        AuthenticationError,
        BadRequestError,
        ConflictError,
        InferScaleError,
        InternalServerError,
        NotFoundError,
        PermissionDeniedError,
        RateLimitError,
        UnprocessableEntityError,
    )
    from inferscale_sdk._export import AsyncFactExport, FactExport
    from inferscale_sdk._memories import AsyncMemories, Memories
    from inferscale_sdk._memory_calls import NOT_GIVEN, FactInput, NotGiven
    from inferscale_sdk._memory_models import (
        AddOutcome,
        AddResult,
        DeleteResult,
        Fact,
        FactEvent,
        FactHistory,
        FailedLine,
        Footprint,
        Hit,
        ImportResult,
        SearchResult,
        Status,
        UserCount,
    )
    from inferscale_sdk._page import AsyncFactPage, AsyncUserPage, FactPage, UserPage
    from inferscale_sdk._reply import RawResponse
    from inferscale_sdk._stream import AsyncChatStream, ChatStream
    from inferscale_sdk._user import AsyncUserClient, UserClient
    from inferscale_sdk._users import AsyncUsers, Users

    InferScale = InferScaleClient
    AsyncInferScale = AsyncInferScaleClient

_ALIASES = {"InferScale": "InferScaleClient", "AsyncInferScale": "AsyncInferScaleClient"}

_HOMES = {
    "APIConnectionError": "_errors",
    "APIError": "_errors",
    "APIResponseValidationError": "_errors",
    "APIStatusError": "_errors",
    "APITimeoutError": "_errors",
    "AddOutcome": "_memory_models",
    "AddResult": "_memory_models",
    "AsyncChatStream": "_stream",
    "AsyncFactExport": "_export",
    "AsyncFactPage": "_page",
    "AsyncInferScaleClient": "_async_client",
    "AsyncMemories": "_memories",
    "AsyncUserClient": "_user",
    "AsyncUserPage": "_page",
    "AsyncUsers": "_users",
    "AuthenticationError": "_errors",
    "BadRequestError": "_errors",
    "BoundChatOptions": "_chat",
    "ChatChunk": "_chat_models",
    "ChatOptions": "_chat",
    "ChatResponse": "_chat_models",
    "ChatStream": "_stream",
    "ConflictError": "_errors",
    "DeleteResult": "_memory_models",
    "Fact": "_memory_models",
    "FactEvent": "_memory_models",
    "FactExport": "_export",
    "FactHistory": "_memory_models",
    "FactInput": "_memory_calls",
    "FactPage": "_page",
    "FailedLine": "_memory_models",
    "Footprint": "_memory_models",
    "Hit": "_memory_models",
    "ImportResult": "_memory_models",
    "InferScaleClient": "_client",
    "InferScaleError": "_errors",
    "InjectedFact": "_chat_models",
    "InternalServerError": "_errors",
    "Memories": "_memories",
    "MemoryOptions": "_chat",
    "MemoryUse": "_chat_models",
    "Message": "_chat_models",
    "NOT_GIVEN": "_memory_calls",
    "NotFoundError": "_errors",
    "NotGiven": "_memory_calls",
    "PermissionDeniedError": "_errors",
    "RateLimitError": "_errors",
    "RawResponse": "_reply",
    "SearchResult": "_memory_models",
    "Status": "_memory_models",
    "ToolCall": "_chat_models",
    "UnprocessableEntityError": "_errors",
    "Usage": "_chat_models",
    "UserClient": "_user",
    "UserCount": "_memory_models",
    "UserPage": "_page",
    "Users": "_users",
}

__all__ = [
    "NOT_GIVEN",
    "APIConnectionError",
    "APIError",
    "APIResponseValidationError",
    "APIStatusError",
    "APITimeoutError",
    "AddOutcome",
    "AddResult",
    "AsyncChatStream",
    "AsyncFactExport",
    "AsyncFactPage",
    "AsyncInferScale",
    "AsyncInferScaleClient",
    "AsyncMemories",
    "AsyncUserClient",
    "AsyncUserPage",
    "AsyncUsers",
    "AuthenticationError",
    "BadRequestError",
    "BoundChatOptions",
    "ChatChunk",
    "ChatOptions",
    "ChatResponse",
    "ChatStream",
    "ConflictError",
    "DeleteResult",
    "Fact",
    "FactEvent",
    "FactExport",
    "FactHistory",
    "FactInput",
    "FactPage",
    "FailedLine",
    "Footprint",
    "Hit",
    "ImportResult",
    "InferScale",
    "InferScaleClient",
    "InferScaleError",
    "InjectedFact",
    "InternalServerError",
    "Memories",
    "MemoryOptions",
    "MemoryUse",
    "Message",
    "NotFoundError",
    "NotGiven",
    "PermissionDeniedError",
    "RateLimitError",
    "RawResponse",
    "SearchResult",
    "Status",
    "ToolCall",
    "UnprocessableEntityError",
    "Usage",
    "UserClient",
    "UserCount",
    "UserPage",
    "Users",
    "__version__",
]


def __getattr__(name: str) -> object:
    true_name = _ALIASES.get(name, name)
    if true_name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[true_name]}"), true_name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
