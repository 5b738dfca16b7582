"""From LangChain's messages, tools and arguments to those of the SDK's chat. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, convert_to_openai_messages
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

Tool = Mapping[str, Any] | type | Callable[..., Any] | BaseTool
_SAID = frozenset({"text", "tool_use"})
_CHOICES = {"any": "required", "required": "required", "auto": "auto", "none": "none"}


def to_wire(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """OpenAI's message dicts. System messages in a row become one, for many chat templates take only one.

    Of what a model said before only text and tool calls are sent back, not reasoning. Raises ValueError for content
    blocks that have no OpenAI shape.
    """
    told = convert_to_openai_messages([_as_said(message) for message in _merged(messages)])
    assert isinstance(told, list), type(told)
    return told


def tool_options(
    tools: Sequence[Tool], tool_choice: str | bool | Mapping[str, Any] | None, strict: bool | None
) -> dict[str, Any]:
    """`tools` and `tool_choice` as OpenAI has them. Raises ValueError for a tool choice that names none of them."""
    described = [convert_to_openai_tool(tool, strict=strict) for tool in tools]  # type: ignore[arg-type]
    choice = _choice(tool_choice, [tool.get("function", {}).get("name") for tool in described])
    return {"tools": described} | ({} if choice is None else {"tool_choice": choice})


def _choice(wanted: str | bool | Mapping[str, Any] | None, names: Sequence[str]) -> str | dict[str, Any] | None:
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, Mapping):
        return dict(wanted)
    if wanted is True:
        return "required"
    if wanted == "any" and len(names) == 1 and names[0]:
        # The same choice, in the words by which a server gives exactly one call: `required` may repeat the tool.
        wanted = names[0]
    if wanted in names:
        return {"type": "function", "function": {"name": wanted}}
    if wanted not in _CHOICES:
        raise ValueError(f"tool_choice={wanted!r}: must be auto, none, any, required or one of {', '.join(names)}")
    return _CHOICES[wanted]


def _merged(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    merged: list[BaseMessage] = []
    for message in messages:
        before = merged[-1] if merged else None
        if isinstance(message, SystemMessage) and isinstance(before, SystemMessage):
            merged[-1] = SystemMessage(f"{before.text}\n\n{message.text}")
        else:
            merged.append(message)
    return merged


def _as_said(message: BaseMessage) -> BaseMessage:
    if not isinstance(message, AIMessage) or isinstance(message.content, str):
        return message
    said = [block for block in message.content if isinstance(block, str) or block.get("type") in _SAID]
    return message.model_copy(update={"content": said})
