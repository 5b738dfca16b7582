"""From the SDK's answers to LangChain's messages. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall, ToolCallChunk
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.output_parsers.openai_tools import make_invalid_tool_call, parse_tool_call
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from inferscale_sdk import ChatChunk, ChatResponse, Message

PROVIDER = "inferscale"
TOOLS_FROM = 1_000
"""Index of the first tool call among a message's blocks, above those that core counts from 0 for text and reasoning.

Chunks with the same index are merged: a tool call at 0 would run into the text at 0.
"""


def read_answer(response: ChatResponse) -> ChatResult:
    """One generation a choice. Usage stands on the first, for it counts all of them."""
    generations = [
        ChatGeneration(
            message=_message(choice.message, _metadata(response, position), _usage(response) if position == 0 else None)
        )
        for position, choice in enumerate(response.choices)
    ]
    return ChatResult(generations=generations, llm_output={"model_name": response.model, "model_provider": PROVIDER})


def read_chunk(chunk: ChatChunk, as_blocks: bool) -> ChatGenerationChunk | None:
    """What a chunk adds to the first choice's message; None if nothing. `as_blocks`: core makes blocks of it."""
    choice = next((choice for choice in chunk.choices if choice.index == 0), None)
    if choice is None:
        return None
    extra = choice.delta.model_extra or {}
    message = AIMessageChunk(
        content=choice.delta.content or "",
        tool_call_chunks=[
            _tool_call_chunk(part, TOOLS_FROM if as_blocks else 0) for part in extra.get("tool_calls") or ()
        ],
        additional_kwargs=_reasoning(extra),
    )
    logprobs = (choice.model_extra or {}).get("logprobs")
    if not (message.content or message.tool_call_chunks or message.additional_kwargs or logprobs):
        return None
    return ChatGenerationChunk(message=message, generation_info={"logprobs": logprobs} if logprobs else None)


def last_chunk(response: ChatResponse) -> ChatGenerationChunk:
    """The end of a stream, with all that must be said once: merging chunks adds numbers and joins strings."""
    metadata = _metadata(response, 0)
    metadata.pop("logprobs", None)  # Came with the chunks.
    message = AIMessageChunk(
        content="", response_metadata=metadata, usage_metadata=_usage(response), chunk_position="last"
    )
    return ChatGenerationChunk(message=message)


def _message(said: Message, metadata: dict[str, Any], usage: UsageMetadata | None) -> AIMessage:
    calls: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in said.tool_calls or ():
        raw = call.model_dump()
        try:
            calls.append(_parsed(raw))
        except OutputParserException as error:
            invalid.append(make_invalid_tool_call(raw, str(error)))
    return AIMessage(
        content=said.content or "",
        tool_calls=calls,
        invalid_tool_calls=invalid,
        additional_kwargs=_reasoning(said.model_extra or {}),
        response_metadata=metadata,
        usage_metadata=usage,
    )


def _parsed(raw: dict[str, Any]) -> ToolCall:
    call = parse_tool_call(raw, return_id=True) or {}
    if not isinstance(call.get("args"), dict):
        raise OutputParserException("the arguments are not a JSON object")
    return ToolCall(name=call["name"], args=call["args"], id=call["id"], type="tool_call")


def _tool_call_chunk(part: Mapping[str, Any], first: int) -> ToolCallChunk:
    function, index = part.get("function") or {}, first + part.get("index", 0)
    return tool_call_chunk(name=function.get("name"), args=function.get("arguments"), id=part.get("id"), index=index)


def _reasoning(extra: Mapping[str, Any]) -> dict[str, Any]:
    # vLLM's names for it; core makes a reasoning block of what stands under this key.
    thought = extra.get("reasoning") or extra.get("reasoning_content")
    return {"reasoning_content": thought} if thought else {}


def _metadata(response: ChatResponse, position: int) -> dict[str, Any]:
    choice = response.choices[position]
    known: dict[str, Any] = {
        "id": response.id,
        "model_name": response.model,
        "model_provider": PROVIDER,
        "finish_reason": choice.finish_reason,
        "logprobs": choice.logprobs,
        "request_id": response.request_id,
        "inferscale": response.raw.get("inferscale"),
    }
    return {key: value for key, value in known.items() if value is not None}


def _usage(response: ChatResponse) -> UsageMetadata | None:
    if response.usage is None:
        return None
    output = response.usage.completion_tokens or 0
    return UsageMetadata(
        input_tokens=response.usage.prompt_tokens,
        output_tokens=output,
        total_tokens=response.usage.prompt_tokens + output,
        input_token_details=InputTokenDetails(cache_read=response.injected_tokens),
    )
