"""Turns: what the user said and what came of it, one long-term write each.

Knows: which message opens a turn and which one ends it. Refuses to know: HTTP, threads.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.llms.inferscale.messages import has_tool_calls
from pydantic import BaseModel, ConfigDict

_ANSWERING = (MessageRole.ASSISTANT, MessageRole.CHATBOT, MessageRole.MODEL)
_THOUGHT, _ANSWER = "Thought:", "Answer:"


class Turn(BaseModel):
    """What the user said, when (Unix seconds), and the answer: None while it is open, or if none ever came."""

    model_config = ConfigDict(frozen=True)

    user_text: str
    at_s: float
    answer: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        """As the server remembers it: who said what, no tool calls, no reasoning."""
        said = [{"role": "user", "content": self.user_text}]
        return said + ([{"role": "assistant", "content": self.answer}] if self.answer else [])


def opens(message: ChatMessage) -> bool:
    """Whether a turn begins: the user says something in words."""
    return message.role == MessageRole.USER and bool((message.content or "").strip())


def ends(message: ChatMessage) -> bool:
    """Whether the turn is over: the assistant answers and asks for no tool."""
    return message.role in _ANSWERING and not has_tool_calls(message)


def answer_of(message: ChatMessage) -> str:
    """What the user was told: of a ReAct agent's message, which holds all its reasoning, only the answer."""
    text = (message.content or "").strip()
    if text.startswith(_THOUGHT) and _ANSWER in text:
        return text.rpartition(_ANSWER)[2].strip()
    return text
