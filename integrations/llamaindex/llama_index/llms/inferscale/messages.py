"""LlamaIndex messages as OpenAI's, the shape that the server reads.

Knows: blocks and roles. Refuses to know: users, HTTP.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

Json = dict[str, Any]
_ROLES = {MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant"}
_NOT_SENT = (ThinkingBlock, ToolCallBlock)


def to_openai(messages: Sequence[ChatMessage]) -> list[Json]:
    """The messages as OpenAI's. Raises ValueError for a block that the server has no field for."""
    return [_one(message) for message in _one_system(messages)]


def has_tool_calls(message: ChatMessage) -> bool:
    """Whether the message asks for tools, in this or the older way of saying so."""
    asked = any(isinstance(block, ToolCallBlock) for block in message.blocks)
    return asked or bool(message.additional_kwargs.get("tool_calls"))


def _one_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Leading system messages as one: an agent puts its own before that of the history, and templates take one."""
    leading = list(takewhile(lambda message: message.role == MessageRole.SYSTEM, messages))
    if len(leading) < 2:
        return list(messages)
    text = "\n\n".join(message.content or "" for message in leading)
    return [ChatMessage(role=MessageRole.SYSTEM, content=text), *messages[len(leading) :]]


def _one(message: ChatMessage) -> Json:
    role = _ROLES.get(message.role, message.role.value)
    sent: Json = {"role": role, "content": _content(message)}
    if role == "assistant" and has_tool_calls(message):
        sent["tool_calls"] = list(_tool_calls(message))
    if role == "tool":
        sent["tool_call_id"] = message.additional_kwargs.get("tool_call_id") or ""
    return sent


def _content(message: ChatMessage) -> str | list[Json]:
    """A string wherever all is text: not every chat template reads parts."""
    parts = [block for block in message.blocks if not isinstance(block, _NOT_SENT)]
    if all(isinstance(part, TextBlock) for part in parts):
        return message.content or ""
    return [_part(part) for part in parts]


def _part(block: object) -> Json:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageBlock):
        return {"type": "image_url", "image_url": {"url": _url(block)}}
    raise ValueError(f"InferScaleLLM cannot send a {type(block).__name__}; it sends text, images and tool calls")


def _url(image: ImageBlock) -> str:
    if image.url:
        return str(image.url)
    encoded = base64.b64encode(image.resolve_image().read()).decode("ascii")
    return f"data:{image.image_mimetype or 'image/png'};base64,{encoded}"


def _tool_calls(message: ChatMessage) -> Iterable[Json]:
    blocks = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    if not blocks:
        return [_plain(call) for call in message.additional_kwargs["tool_calls"]]
    return [_tool_call(block) for block in blocks]


def _tool_call(block: ToolCallBlock) -> Json:
    given = block.tool_kwargs
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return {
        "id": block.tool_call_id or "",
        "type": "function",
        "function": {"name": block.tool_name, "arguments": arguments},
    }


def _plain(call: object) -> Json:
    """Other LLM classes keep objects of their own client here."""
    dump = getattr(call, "model_dump", None)
    plain: Json = dump(exclude_none=True) if callable(dump) else dict(call)  # type: ignore[call-overload]
    return plain
