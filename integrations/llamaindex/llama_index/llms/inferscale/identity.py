"""Whose memory a chat uses. Agents pass no arguments through to the LLM, so a memory marks the messages it hands out.

Knows: where a user can be named and which place wins. Refuses to know: HTTP, prompts. A chat whose places disagree, or
that names nobody, is refused: the alternative is one user's memory in another user's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from llama_index.core.base.llms.types import ChatMessage
from pydantic import AfterValidator

MARK = "inferscale"
"""Key in `ChatMessage.additional_kwargs`; other LLM classes leave unknown keys of user messages alone."""


def check_id(value: str) -> str:
    """`value` itself. Raises ValueError if it is empty or has blanks at its ends, as the server would."""
    if not value or value.strip() != value:
        raise ValueError(f"{value!r} must not be empty, nor begin or end with a blank")
    return value


Id = Annotated[str, AfterValidator(check_id)]
"""A user or session id."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A user and, where there is one, a conversation. None where not named."""

    user_id: str | None = None
    session_id: str | None = None


def marked(message: ChatMessage, identity: Identity) -> ChatMessage:
    """A copy of the message that names its user."""
    mark = {"user_id": identity.user_id, "session_id": identity.session_id}
    return message.model_copy(update={"additional_kwargs": {**message.additional_kwargs, MARK: mark}})


def unmarked(message: ChatMessage) -> ChatMessage:
    """A deep copy of the message without the mark."""
    copy = message.model_copy(deep=True)
    copy.additional_kwargs.pop(MARK, None)
    return copy


def resolve(messages: Sequence[ChatMessage], *, call: Identity, own: Identity) -> Identity:
    """Who asks: named in the call, else by the messages, else by the LLM itself.

    Raises ValueError when nobody is named, or when the messages come from another user's memory.
    """
    mark = _mark(messages)
    user = call.user_id or own.user_id or mark.user_id
    if user is None:
        raise ValueError("no user: pass user_id to InferScaleLLM or to the call, or use an InferScaleMemory")
    if mark.user_id not in (None, user):
        raise ValueError(f"the messages come from the memory of user {mark.user_id!r}, but the chat is for {user!r}")
    return Identity(user, call.session_id or mark.session_id or own.session_id)


def _mark(messages: Sequence[ChatMessage]) -> Identity:
    marks = [mark for message in messages if isinstance(mark := message.additional_kwargs.get(MARK), dict)]
    users = {mark.get("user_id") for mark in marks}
    if len(users) > 1:
        raise ValueError(f"the messages come from the memories of several users: {sorted(map(str, users))}")
    return Identity(marks[-1].get("user_id"), marks[-1].get("session_id")) if marks else Identity()
