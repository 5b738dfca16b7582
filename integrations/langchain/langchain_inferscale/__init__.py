"""InferScale in LangChain and LangGraph: a chat model that remembers each user, and ways to its memory.

    from langchain_inferscale import ChatInferScale

    model = ChatInferScale(user_id="alice", temperature=0, max_tokens=40)
    print(model.invoke("What is the name of Alice's dog?").text)

The one public door: every module behind it is private. Names load on first use, so LangGraph and `langchain` are needed
only by those who use the store or the middleware.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from langchain_inferscale._version import __version__

if TYPE_CHECKING:
    from langchain_inferscale._chat_model import InferScaleChatModel
    from langchain_inferscale._errors import (
        InferScaleAPIError,
        InferScaleAuthenticationError,
        InferScaleConnectionError,
        InferScaleContextOverflowError,
        InferScaleInvalidRequestError,
        InferScaleNotFoundError,
        InferScalePermissionDeniedError,
        InferScaleRateLimitError,
        InferScaleTimeoutError,
    )
    from langchain_inferscale._middleware import InferScaleMemoryMiddleware
    from langchain_inferscale._namespace import user_label
    from langchain_inferscale._retriever import InferScaleRetriever
    from langchain_inferscale._store import InferScaleStore

    ChatInferScale = InferScaleChatModel

_ALIASES = {"ChatInferScale": "InferScaleChatModel"}

_HOMES = {
    "InferScaleAPIError": "_errors",
    "InferScaleAuthenticationError": "_errors",
    "InferScaleChatModel": "_chat_model",
    "InferScaleConnectionError": "_errors",
    "InferScaleContextOverflowError": "_errors",
    "InferScaleInvalidRequestError": "_errors",
    "InferScaleMemoryMiddleware": "_middleware",
    "InferScaleNotFoundError": "_errors",
    "InferScalePermissionDeniedError": "_errors",
    "InferScaleRateLimitError": "_errors",
    "InferScaleRetriever": "_retriever",
    "InferScaleStore": "_store",
    "InferScaleTimeoutError": "_errors",
    "user_label": "_namespace",
}

_WANTED = {"langchain_core": "'inferscale-sdk[langchain]'", "langchain": "langchain", "langgraph": "langgraph"}
"""What is to be installed for a package that is missing."""

__all__ = [
    "ChatInferScale",
    "InferScaleAPIError",
    "InferScaleAuthenticationError",
    "InferScaleChatModel",
    "InferScaleConnectionError",
    "InferScaleContextOverflowError",
    "InferScaleInvalidRequestError",
    "InferScaleMemoryMiddleware",
    "InferScaleNotFoundError",
    "InferScalePermissionDeniedError",
    "InferScaleRateLimitError",
    "InferScaleRetriever",
    "InferScaleStore",
    "InferScaleTimeoutError",
    "__version__",
    "user_label",
]


def __getattr__(name: str) -> object:
    true_name = _ALIASES.get(name, name)
    if true_name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        found: object = getattr(import_module(f"{__name__}.{_HOMES[true_name]}"), true_name)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _WANTED:
            raise
        raise ModuleNotFoundError(f"{name} needs {package}: pip install {_WANTED[package]}", name=error.name) from error
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
