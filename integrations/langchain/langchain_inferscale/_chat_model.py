"""The chat model: a thin shell over the SDK. Who the user is, how messages travel and how answers are read lie beside.

LangChain caches answers by prompt and call arguments. The user therefore becomes a call argument before LangChain looks
(every public method here does that), else one user would get another's cached answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from langchain_core.caches import BaseCache
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from pydantic import ConfigDict, Field, model_validator

from langchain_inferscale import _structured
from langchain_inferscale._answer import PROVIDER, last_chunk, read_answer, read_chunk
from langchain_inferscale._errors import translated
from langchain_inferscale._identity import NOBODY, SESSION, USER, named_in_run, pick_user
from langchain_inferscale._request import to_wire, tool_options
from langchain_inferscale._server import ServerFields
from langchain_inferscale._version import __version__

SAMPLING = ("model", "temperature", "max_tokens", "top_p", "seed")


class InferScaleChatModel(ServerFields, BaseChatModel):
    """A chat model that answers from one user's long-term memory. Also exported as `ChatInferScale`.

    The user of a call is the argument `user_id=`, else `config["configurable"]["user_id"]` or `user_id` in LangGraph's
    context, else the constructor's; ValueError if nobody is named. What memory did is in
    `response_metadata["inferscale"]`; `usage_metadata["input_token_details"]["cache_read"]` counts the injected tokens.
    Calls raise the errors of this package, which are the SDK's and langchain-core's; unknown constructor arguments are
    ValueErrors.
    """

    model_config = ConfigDict(extra="forbid", populate_by_name=True, protected_namespaces=())

    model: str | None = Field(default=None, alias="model_name")
    """Which model; the server's own where not given."""
    user_id: str | None = None
    """Whose memory, where neither the call nor the run names a user."""
    session_id: str | None = None
    """Which conversation, kept with what is remembered from it."""
    memory: dict[str, Any] = Field(default_factory=dict)
    """How memory serves, such as `{"mode": "text", "k": 5, "remember": True}`; a call's `memory=` wins key by key."""
    temperature: float | None = None
    max_tokens: int | None = None
    """Tokens of an answer at most."""
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    """Where an answer ends; a call's `stop=` wins."""
    streaming: bool = False
    """Stream inside of `invoke` too."""
    model_kwargs: dict[str, Any] = Field(default_factory=dict)
    """More arguments of the SDK's `chat`, such as `{"extra_body": {"top_k": 20}}`."""
    cache: BaseCache | bool | None = Field(default=False, exclude=True)
    """Off, also where a global cache is set: a cached answer knows nothing that was remembered since."""

    @model_validator(mode="after")
    def _set_inferscale_version(self) -> Self:
        self._add_version("langchain-inferscale", __version__)
        return self

    # What LangChain asks about the model

    @property
    def _llm_type(self) -> str:
        return "inferscale-chat"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        named = (*SAMPLING, "base_url", USER, SESSION, "memory", "stop", "model_kwargs")
        return {name: getattr(self, name) for name in named}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop or self._stops(None), **kwargs)
        params["ls_provider"] = PROVIDER
        return params

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # `generate` comes here without a user in its arguments. One user id of two tenants is two users.
        return super()._get_llm_string(stop=stop, **{USER: self.user_id, **kwargs, "tenant": self.credentials_digest})

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return ["langchain_inferscale"]

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"api_key": "INFERSCALE_API_KEY"}

    # Public calls: name the user, then LangChain's own

    def invoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return super().invoke(input, config, stop=stop, **self._named(config, kwargs))

    async def ainvoke(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AIMessage:
        return await super().ainvoke(input, config, stop=stop, **self._named(config, kwargs))

    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        yield from super().stream(input, config, stop=stop, **self._named(config, kwargs))

    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        async for chunk in super().astream(input, config, stop=stop, **self._named(config, kwargs)):
            yield chunk

    def stream_events(self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return super().stream_events(input, config, **self._named(config, kwargs))

    def astream_events(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return super().astream_events(input, config, **self._named(config, kwargs))

    # Tools and structured output

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | bool | Mapping[str, Any] | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """A copy that may call tools. `tool_choice`: auto, none, required (or True: it must), a tool's name (that one,
        once), or any: required, but the only tool is called once."""
        return self.bind(**tool_options(tools, tool_choice, strict), **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: _structured.Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Answers as instances of a pydantic class, or as dicts for a TypedDict, JSON schema or OpenAI function.

        `json_schema` (guided decoding: nothing else can come), `function_calling` (one forced tool call) or `json_mode`
        (some JSON; the prompt must say which). With `include_raw` the result is a dict of raw, parsed and
        parsing_error. Raises ValueError for an unknown method, or no schema where one is needed.
        """
        if method not in ("json_schema", "function_calling", "json_mode"):
            raise ValueError(f"method={method!r}: must be json_schema, function_calling or json_mode")
        if schema is None and method != "json_mode":
            raise ValueError(f"method={method!r} needs a schema")
        bound = {**kwargs, **_structured.trace_options(schema, method, strict)}
        read = _structured.parser(schema, method)
        if method == "function_calling" and schema is not None:
            choice = _structured.tool_name(schema)
            asked = self.bind_tools([schema], tool_choice=choice, strict=strict, parallel_tool_calls=False, **bound)
        else:
            asked = self.bind(response_format=_structured.response_format(schema, method, strict), **bound)
        return _structured.piped(asked, read, include_raw)

    # What LangChain calls

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with translated():
            return read_answer(self.client.chat(self._user(kwargs), **self._asked(messages, stop, kwargs)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        client = self._clients.for_loop()
        with translated():
            return read_answer(await client.chat(self._user(kwargs), **self._asked(messages, stop, kwargs)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        asked = self._asked(messages, stop, kwargs)
        with translated(), self.client.chat(self._user(kwargs), stream=True, **asked) as answer:
            for chunk in answer:
                if read := read_chunk(chunk, self.output_version == "v1"):
                    yield read
            yield last_chunk(answer.get_final_response())

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        client, asked = self._clients.for_loop(), self._asked(messages, stop, kwargs)
        with translated():
            async with await client.chat(self._user(kwargs), stream=True, **asked) as answer:
                async for chunk in answer:
                    if read := read_chunk(chunk, self.output_version == "v1"):
                        yield read
                yield last_chunk(await answer.get_final_response())

    # One call's arguments

    def _named(self, config: RunnableConfig | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with user and session in them. Raises ValueError if nobody names a user."""
        named = {USER: pick_user(kwargs.get(USER), config, self.user_id)}
        if kwargs.get(SESSION) is None and (session := named_in_run(SESSION, config)) is not None:
            named[SESSION] = session
        return {**kwargs, **named}

    def _user(self, kwargs: Mapping[str, Any]) -> str:
        user: str | None = kwargs.get(USER)
        user = self.user_id if user is None else user
        if user is None:
            raise ValueError(NOBODY)
        return user

    def _asked(self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: Mapping[str, Any]) -> Any:
        """The SDK's arguments: the constructor's, then `model_kwargs`, then the call's."""
        given = {key: value for key, value in kwargs.items() if key not in (USER, SESSION, "memory", "stream")}
        mine = {name: getattr(self, name) for name in SAMPLING}
        memory = {**self.memory, **(kwargs.get("memory") or {})}
        return {
            **mine,
            **self.model_kwargs,
            "stop": self._stops(stop),
            **given,
            "messages": to_wire(messages),
            "session_id": kwargs.get(SESSION) or self.session_id,
            "memory": memory or None,
        }

    def _stops(self, given: list[str] | None) -> list[str] | None:
        mine = [self.stop] if isinstance(self.stop, str) else self.stop
        return (given or mine) or None
