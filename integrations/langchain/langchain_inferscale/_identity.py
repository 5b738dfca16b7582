"""Whose memory a call uses.

Knows: the places where LangChain and LangGraph keep a user id. Refuses to know: models, requests. A place that names
an empty user is not skipped: the SDK refuses it, so that nobody falls back to somebody else's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config

USER = "user_id"
SESSION = "session_id"

NOBODY = (
    "no user: InferScale answers from one user's memory. Pass user_id= to the constructor or to the call, "
    'config={"configurable": {"user_id": ...}}, or user_id in the LangGraph context'
)


def named_in_run(name: str, config: RunnableConfig | None) -> Any:
    """What the run says for `name`: in `config["configurable"]`, or in LangGraph's context; None if in neither.

    Raises ValueError where the two differ: serving the wrong one would show one user another's memory.
    """
    configured = ensure_config(config).get("configurable", {}).get(name)
    in_context = _field(_graph_context(), name)
    if configured is None or in_context is None:
        return in_context if configured is None else configured
    if configured != in_context:
        raise ValueError(f"{name}: configurable says {configured!r}, LangGraph's context {in_context!r}")
    return configured


def pick_user(given: Any, config: RunnableConfig | None, default: str | None) -> Any:
    """The user of one call: the argument, what the run says, or the constructor's. Raises ValueError if none does."""
    for user in (given, named_in_run(USER, config) if given is None else None, default):
        if user is not None:
            return user
    raise ValueError(NOBODY)


def user_of(context: object) -> Any:
    """`user_id` of a LangGraph context (a mapping or an object), None if it has none."""
    return _field(context, USER)


def _field(context: object, name: str) -> Any:
    return context.get(name) if isinstance(context, Mapping) else getattr(context, name, None)


def _graph_context() -> object:
    if "langgraph.runtime" not in sys.modules:
        return None  # No graph runs in a program that has not loaded this.
    from langgraph.runtime import get_runtime

    with suppress(RuntimeError, KeyError):  # Called outside of a graph.
        return getattr(get_runtime(), "context", None)
    return None
