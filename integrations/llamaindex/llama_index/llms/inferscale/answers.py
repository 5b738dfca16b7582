"""The SDK's answers as LlamaIndex's. `raw` is the server's JSON, with `inferscale`: mode, facts, tokens, timings.

Knows: both shapes. Refuses to know: HTTP, who asked.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ContentBlock,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from inferscale_sdk import ChatChunk, Usage
from inferscale_sdk import ChatResponse as Answer

TOOL_CALLS = "tool_calls"


def whole(answer: Answer, delta: str | None = None) -> ChatResponse:
    """A complete answer; `delta` is "" for the one that ends a stream."""
    return ChatResponse(message=_message(answer), raw=answer.raw, delta=delta, additional_kwargs=_counts(answer.usage))


def partial(so_far: Answer, chunk: ChatChunk) -> ChatResponse:
    """What has come of a stream with `chunk`: the message so far and the piece that the chunk adds."""
    thinking = _thinking(chunk)
    more = {"thinking_delta": thinking} if thinking else {}
    return ChatResponse(message=_message(so_far), raw=chunk.raw, delta=chunk.text, additional_kwargs=more)


def _message(answer: Answer) -> ChatMessage:
    blocks: list[ContentBlock] = [TextBlock(text=answer.text)] if answer.text or not answer.tool_calls else []
    blocks += [
        # The arguments stay the string that the model wrote: sent back like that, they hit the prefix cache.
        ToolCallBlock(tool_call_id=call.id, tool_name=call.function.name, tool_kwargs=call.function.arguments)
        for call in answer.tool_calls
    ]
    # LlamaIndex's streamed structured answers look for calls in the place where they were before there were blocks.
    older = {TOOL_CALLS: [call.model_dump() for call in answer.tool_calls]} if answer.tool_calls else {}
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=blocks, additional_kwargs=older)


def _counts(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens or 0,
        "total_tokens": usage.total_tokens,
    }


def _thinking(chunk: ChatChunk) -> str:
    """Reasoning has had two names."""
    fields = [choice.delta.model_extra or {} for choice in chunk.choices if choice.index == 0]
    return "".join(str(each.get("reasoning") or each.get("reasoning_content") or "") for each in fields)
