"""Tools: how the server is told of them, and what an answer asks for.

Knows: OpenAI's tool fields. Refuses to know: HTTP, memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, ToolCallBlock
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.llms.utils import parse_partial_json
from llama_index.core.tools.types import BaseTool

Json = dict[str, Any]


def tool_options(
    tools: Sequence[BaseTool], *, choice: str | Json | None, required: bool, parallel: bool
) -> dict[str, Any]:
    """The chat options that offer `tools`; none at all without tools, for the server refuses an empty list."""
    if not tools:
        return {}
    return {
        "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
        "tool_choice": _choice(choice, required),
        "parallel_tool_calls": parallel,
    }


def selections(response: ChatResponse) -> list[ToolSelection]:
    """The tool calls of an answer, also of one that is still coming."""
    return [_selection(block) for block in _blocks(response.message)]


def keep_first_call(response: ChatResponse) -> ChatResponse:
    """The answer with at most one tool call, for callers that take one at a time."""
    message = response.message
    later = _blocks(message)[1:]
    if later:
        message.blocks = [block for block in message.blocks if not any(block is other for other in later)]
        message.additional_kwargs["tool_calls"] = message.additional_kwargs["tool_calls"][:1]
    return response


def _blocks(message: ChatMessage) -> list[ToolCallBlock]:
    return [block for block in message.blocks if isinstance(block, ToolCallBlock)]


def _choice(choice: str | Json | None, required: bool) -> str | Json:
    if choice is None:
        return "required" if required else "auto"
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        return {"type": "function", "function": {"name": choice}}
    return choice


def _selection(block: ToolCallBlock) -> ToolSelection:
    arguments = block.tool_kwargs if isinstance(block.tool_kwargs, dict) else _parsed(block.tool_kwargs)
    return ToolSelection(tool_id=block.tool_call_id or "", tool_name=block.tool_name, tool_kwargs=arguments)


def _parsed(arguments: str) -> Json:
    """What can be read of arguments that are cut off, or {}: the tool then says what is missing."""
    try:
        parsed = json.loads(arguments)
    except ValueError:
        try:
            parsed = parse_partial_json(arguments)
        except ValueError:
            parsed = {}
    return parsed if isinstance(parsed, dict) else {}
