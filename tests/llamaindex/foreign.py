"""An LLM that knows nothing of InferScale: scripted answers, and a record of the messages that it was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    ToolCallBlock,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from pydantic import PrivateAttr


class ForeignLLM(FunctionCallingLLM):
    """Plays its answers one a call, the last one again and again."""

    _answers: list[ChatMessage] = PrivateAttr()
    _shown: list[list[ChatMessage]] = PrivateAttr(default_factory=list)

    def __init__(self, *answers: ChatMessage | str) -> None:
        super().__init__()
        said = [ChatMessage(role="assistant", content=a) if isinstance(a, str) else a for a in answers]
        self._answers = said

    @property
    def shown(self) -> list[list[ChatMessage]]:
        """The messages of each call."""
        return self._shown

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, is_function_calling_model=True)

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        self._shown.append(list(messages))
        answer = self._answers[min(len(self._shown), len(self._answers)) - 1].model_copy(deep=True)
        return ChatResponse(message=answer, delta=answer.content)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self.chat(messages)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        def one() -> ChatResponseGen:
            yield self.chat(messages)

        return one()

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        async def one() -> ChatResponseAsyncGen:
            yield self.chat(messages)

        return one()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self.chat([ChatMessage(content=prompt)]).message.content or "")

    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return self.complete(prompt)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        raise AssertionError("no test streams a completion of this LLM")

    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        raise AssertionError("no test streams a completion of this LLM")

    def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {"messages": chat_history}

    def get_tool_calls_from_response(self, response: ChatResponse, **kwargs: Any) -> list[ToolSelection]:
        blocks = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        return [ToolSelection(tool_id="t", tool_name=b.tool_name, tool_kwargs=b.tool_kwargs) for b in blocks]
