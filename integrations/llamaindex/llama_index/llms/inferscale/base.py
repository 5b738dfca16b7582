"""The LLM class: a thin shell, sync and async; messages, tools, answers and identity live in files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from llama_index.core.base.llms.generic_utils import (
    astream_chat_response_to_completion_response,
    chat_response_to_completion_response,
    stream_chat_response_to_completion_response,
)
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.constants import DEFAULT_CONTEXT_WINDOW, DEFAULT_NUM_OUTPUTS
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool
from llama_index.llms.inferscale import answers
from llama_index.llms.inferscale.clients import Clients
from llama_index.llms.inferscale.identity import Id, Identity, resolve
from llama_index.llms.inferscale.messages import to_openai
from llama_index.llms.inferscale.tools import keep_first_call, selections, tool_options
from pydantic import ConfigDict, Field, PrivateAttr

from inferscale_sdk import AsyncInferScaleClient, BoundChatOptions, InferScaleClient


@dataclass(frozen=True, slots=True)
class _Asking:
    """One chat, ready for the SDK."""

    user_id: str
    options: BoundChatOptions


class InferScaleLLM(FunctionCallingLLM):
    """A model served by InferScale, with what it remembers of the user who asks.

        llm = InferScaleLLM(user_id="alice", temperature=0, max_tokens=40)
        llm.chat([ChatMessage("What is the name of Alice's dog?")]).message.content

    The user comes from the call (`llm.chat(messages, user_id="bob")`), else from the constructor, else from the
    InferScaleMemory that handed out the messages; a chat without a user is a ValueError, so is one whose messages come
    from another user's memory. Calls take `user_id`, `session_id`, `memory` and the SDK's chat options; `raw` of an
    answer is the server's JSON, with its `inferscale` part. The key is never a field, so it is never serialised.
    Calls raise `inferscale_sdk.APIError`. An unknown constructor argument is an error.
    """

    model_config = ConfigDict(extra="forbid")

    user_id: Id | None = Field(default=None, description="Whose memory to use, unless the call names another user.")
    session_id: Id | None = Field(default=None, description="The conversation, for what is remembered of it.")
    model: str | None = Field(default=None, description="The server's own model where not given.")
    memory: dict[str, Any] = Field(
        default_factory=dict, description="How memory serves a chat: mode, k, min_score, filter, context, remember."
    )
    temperature: float | None = Field(default=None, description="Sampling temperature; the server's where not given.")
    max_tokens: int | None = Field(default=None, description="The longest answer, in tokens.", gt=0)
    additional_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="More chat options of the SDK, such as top_p, seed, extra_body."
    )
    context_window: int = Field(
        default=DEFAULT_CONTEXT_WINDOW, description="The server's longest prompt plus answer, in tokens.", gt=0
    )
    is_function_calling_model: bool = Field(default=True, description="Whether the model can call tools.")
    base_url: str | None = Field(default=None, description="Default INFERSCALE_BASE_URL, else http://127.0.0.1:8000.")
    timeout: float | None = Field(default=None, description="Seconds for one try of a request.")
    max_retries: int = Field(default=2, description="Further tries of a request that failed.", ge=0)

    _clients: Clients = PrivateAttr()

    def __init__(
        self,
        user_id: str | None = None,
        *,
        api_key: str | None = None,
        client: InferScaleClient | None = None,
        async_client: AsyncInferScaleClient | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(user_id=user_id, **fields)
        self._clients = Clients(
            base_url=self.base_url,
            api_key=api_key,
            timeout=self.timeout,
            max_retries=self.max_retries,
            client=client,
            async_client=async_client,
        )

    @classmethod
    def class_name(cls) -> str:
        """The name in serialised form."""
        return "InferScaleLLM"

    @property
    def metadata(self) -> LLMMetadata:
        """What LlamaIndex plans with; sizes in tokens, as the fields say, for asking the server would block."""
        return LLMMetadata(
            context_window=self.context_window,
            num_output=self.max_tokens or DEFAULT_NUM_OUTPUTS,
            is_chat_model=True,
            is_function_calling_model=self.is_function_calling_model,
            model_name=self.model or "inferscale",
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Ask. Raises APIError; ValueError without a user."""
        return self._ask(messages, kwargs)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Ask. Raises APIError; ValueError without a user."""
        return await self._ask_async(messages, kwargs)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """The answer as it grows; the last one is whole, with usage and provenance in `raw`."""
        return self._stream(self._asking(messages, kwargs))

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """The answer as it grows; the last one is whole, with usage and provenance in `raw`."""
        return self._stream_async(self._asking(messages, kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Ask with one user message."""
        return chat_response_to_completion_response(self._ask([ChatMessage(content=prompt)], kwargs))

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Ask with one user message."""
        return chat_response_to_completion_response(await self._ask_async([ChatMessage(content=prompt)], kwargs))

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Ask with one user message; the answer as it grows."""
        growing = self._stream(self._asking([ChatMessage(content=prompt)], kwargs))
        return stream_chat_response_to_completion_response(growing)

    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        """Ask with one user message; the answer as it grows."""
        growing = self._stream_async(self._asking([ChatMessage(content=prompt)], kwargs))
        return astream_chat_response_to_completion_response(growing)

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """The tool calls of an answer. Raises ValueError if there are none and `error_on_no_tool_call`."""
        found = selections(response)
        if not found and error_on_no_tool_call:
            raise ValueError("the model called no tool")
        return found

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        asked = ChatMessage(role=MessageRole.USER, content=user_msg) if isinstance(user_msg, str) else user_msg
        messages = [*(chat_history or ()), *([asked] if asked else ())]
        offered = tool_options(
            tools,
            choice=kwargs.pop("tool_choice", None),
            required=tool_required,
            parallel=allow_parallel_tool_calls,
        )
        return {"messages": messages, **offered, **kwargs}

    def _validate_chat_with_tools_response(
        self,
        response: ChatResponse,
        tools: Sequence[BaseTool],
        allow_parallel_tool_calls: bool = False,
        **kwargs: Any,
    ) -> ChatResponse:
        return response if allow_parallel_tool_calls else keep_first_call(response)

    def _ask(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> ChatResponse:
        asking = self._asking(messages, given)
        return answers.whole(self._clients.sync.for_user(asking.user_id).chat(**asking.options))

    async def _ask_async(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> ChatResponse:
        asking = self._asking(messages, given)
        return answers.whole(await self._clients.in_loop().for_user(asking.user_id).chat(**asking.options))

    def _stream(self, asking: _Asking) -> ChatResponseGen:
        with self._clients.sync.for_user(asking.user_id).chat(stream=True, **asking.options) as stream:
            for chunk in stream:
                if chunk.choices:
                    yield answers.partial(stream.so_far, chunk)
            yield answers.whole(stream.get_final_response(), delta="")

    async def _stream_async(self, asking: _Asking) -> ChatResponseAsyncGen:
        async with await self._clients.in_loop().for_user(asking.user_id).chat(stream=True, **asking.options) as stream:
            async for chunk in stream:
                if chunk.choices:
                    yield answers.partial(stream.so_far, chunk)
            yield answers.whole(await stream.get_final_response(), delta="")

    def _asking(self, messages: Sequence[ChatMessage], given: dict[str, Any]) -> _Asking:
        """Merge the call's options over the LLM's own. Raises ValueError without a user."""
        options = {**self.additional_kwargs, **given}
        call = Identity(options.pop("user_id", None), options.pop("session_id", None))
        identity = resolve(messages, call=call, own=Identity(self.user_id, self.session_id))
        own = {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens}
        memory = {**self.memory, **(options.pop("memory", None) or {})}
        merged = {**own, **options, "memory": memory or None, "session_id": identity.session_id}
        kept = {key: value for key, value in merged.items() if value is not None}
        assert identity.user_id is not None, "resolve() names a user or raises"
        return _Asking(identity.user_id, cast(BoundChatOptions, {**kept, "messages": to_openai(messages)}))
