"""The chat model: what it sends, what it says about the answer, and what it refuses."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import langchain_inferscale
import pytest
from langchain_core import exceptions as core
from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_inferscale import ChatInferScale, InferScaleChatModel
from langchain_inferscale._answer import read_answer, read_chunk
from langchain_inferscale._request import to_wire, tool_options
from pydantic import BaseModel, ValidationError
from typing_extensions import TypedDict

import inferscale_sdk as sdk

from .scripted_engine import INJECTED, MODEL, Refusal, ScriptedEngine, canary


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny"


class Pet(BaseModel):
    """A pet."""

    name: str
    age: int


class PetDict(TypedDict):
    """A pet."""

    name: str
    age: int


def test_the_door_shows_these_names_and_loads_each() -> None:
    assert sorted(langchain_inferscale.__all__) == dir(langchain_inferscale)
    assert all(getattr(langchain_inferscale, name) is not None for name in langchain_inferscale.__all__)
    assert ChatInferScale is InferScaleChatModel
    with pytest.raises(AttributeError, match="InferScaleThing"):
        langchain_inferscale.InferScaleThing  # noqa: B018


def test_options_reach_the_server_and_a_call_wins_over_the_constructor(engine: ScriptedEngine) -> None:
    model = engine.model(user_id="alice", model="m", temperature=0.5, stop="END", memory={"mode": "kv", "k": 3})
    model.invoke("hello", temperature=0.0, stop=["you"], memory={"k": 5}, extra_body={"top_k": 7})
    [body] = engine.chats
    assert (body["model"], body["temperature"], body["stop"], body["top_k"]) == ("m", 0.0, ["you"], 7)
    assert body["inferscale"] == {"user_id": "alice", "memory": {"mode": "kv", "k": 5}}
    assert body["messages"] == [{"role": "user", "content": "hello"}]


def test_an_answer_says_where_it_comes_from(engine: ScriptedEngine) -> None:
    answer = engine.model(user_id="alice").invoke("hello")
    told = answer.response_metadata
    assert (told["model_name"], told["model_provider"], told["finish_reason"]) == (MODEL, "inferscale", "stop")
    assert (told["id"], told["request_id"]) == ("chat-alice", "req-1")
    assert told["inferscale"]["facts"] == [{"id": "f1", "text": canary("alice"), "score": 0.9}]


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_stream_adds_up_to_the_answer_of_invoke(engine: ScriptedEngine, version: str) -> None:
    model = engine.model(user_id="alice", output_version=version)
    whole = model.invoke("hello")
    first, *rest = model.stream("hello")
    summed = sum(rest, first)
    assert summed.text == whole.text == f"{canary('alice')} hears you"
    assert summed.usage_metadata == whole.usage_metadata
    assert summed.response_metadata == whole.response_metadata
    assert isinstance(whole.content, list) == (version == "v1")


def test_injected_tokens_count_as_read_from_the_cache(engine: ScriptedEngine) -> None:
    usage = engine.model(user_id="alice").invoke("one two three").usage_metadata
    assert usage is not None
    assert usage["input_token_details"] == {"cache_read": INJECTED}
    assert (usage["input_tokens"], usage["total_tokens"]) == (3 + INJECTED, 3 + INJECTED + usage["output_tokens"])


def test_v1_text_beside_a_tool_call_stays_text(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import scripted_engine

    def with_text(body: dict[str, Any], user: str) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [scripted_engine._call(body["tools"], 0, "Oslo")],
        }

    monkeypatch.setattr(scripted_engine, "_said", with_text)
    first, *rest = engine.model(user_id="alice", output_version="v1").bind_tools([get_weather]).stream("hello")
    blocks = sum(rest, first).content_blocks
    assert [(block["type"], block.get("text"), block.get("args")) for block in blocks] == [
        ("text", "Let me see.", None),
        ("tool_call", None, {"city": "Oslo"}),
    ]


def test_a_misspelt_constructor_argument_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="user_idd"):
        InferScaleChatModel(user_idd="alice")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="base_url"):
        InferScaleChatModel(base_url="ftp://x")
    with pytest.raises(TypeError, match="temprature"):
        InferScaleChatModel(user_id="alice").invoke("hello", temprature=0)


def test_the_key_is_neither_serialised_nor_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    model = InferScaleChatModel(api_key="sk-secret", user_id="alice", default_headers={"x-auth": "hidden"})  # type: ignore[arg-type]
    for text in (dumps(model), repr(model), str(model), json.dumps(model.asdict())):
        assert "sk-secret" not in text and "hidden" not in text
    monkeypatch.setenv("INFERSCALE_API_KEY", "sk-again")
    loaded = load(
        dumpd(model),
        allowed_objects=[InferScaleChatModel],
        valid_namespaces=["langchain_inferscale"],
        secrets_from_env=True,
    )
    assert (loaded.user_id, loaded.api_key.get_secret_value()) == ("alice", "sk-again")


def test_copies_of_a_model_share_its_connections() -> None:
    model = InferScaleChatModel(user_id="alice")
    assert copy.deepcopy(model).client is model.model_copy(update={"user_id": "bob"}).client is model.client


def test_traces_name_provider_and_model(engine: ScriptedEngine) -> None:
    params = engine.model(model="m", temperature=0.5, stop="END")._get_ls_params()
    assert (params["ls_provider"], params["ls_model_name"], params["ls_stop"]) == ("inferscale", "m", ["END"])


# Tools


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("any", {"type": "function", "function": {"name": "get_weather"}}),
        (True, "required"),
        ("required", "required"),
        ("auto", "auto"),
        ("none", "none"),
        ("get_weather", {"type": "function", "function": {"name": "get_weather"}}),
        ({"type": "function", "function": {"name": "x"}}, {"type": "function", "function": {"name": "x"}}),
        (None, None),
        (False, None),
    ],
)
def test_tool_choice_in_langchains_words_becomes_openais(choice: Any, sent: Any) -> None:
    assert tool_options([get_weather], choice, None).get("tool_choice") == sent


def test_any_of_several_tools_leaves_the_choice_to_the_model() -> None:
    assert tool_options([get_weather, Pet], "any", None)["tool_choice"] == "required"


def test_a_tool_choice_that_names_no_tool_is_refused() -> None:
    with pytest.raises(ValueError, match="get_weather"):
        tool_options([get_weather], "get_wether", None)


def test_arguments_that_are_not_a_json_object_become_invalid_tool_calls() -> None:
    calls = [{"id": "1", "function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', '{"a"', "3", "")]
    response = sdk.ChatResponse.model_validate({"choices": [{"message": {"content": None, "tool_calls": calls}}]})
    [generation] = read_answer(response).generations
    message = generation.message
    assert isinstance(message, AIMessage)
    assert [call["args"] for call in message.tool_calls] == [{"a": 1}, {}]
    assert [call["args"] for call in message.invalid_tool_calls] == ['{"a"', "3"]


# Answers


def test_each_of_n_answers_is_a_generation_and_usage_is_counted_once() -> None:
    choices = [{"index": n, "message": {"content": f"answer {n}", "reasoning": f"thought {n}"}} for n in range(2)]
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    response = sdk.ChatResponse.model_validate({"choices": choices, "usage": usage})
    first, second = (generation.message for generation in read_answer(response).generations)
    assert (first.text, second.text) == ("answer 0", "answer 1")
    assert first.content_blocks[0] == {"type": "reasoning", "reasoning": "thought 0"}
    assert isinstance(first, AIMessage) and isinstance(second, AIMessage)
    assert first.usage_metadata is not None and second.usage_metadata is None


def test_log_probabilities_and_reasoning_of_a_stream_add_up() -> None:
    def chunk(text: str, thought: str | None, number: float) -> sdk.ChatChunk:
        choice = {"index": 0, "delta": {"content": text, "reasoning": thought}, "logprobs": {"content": [number]}}
        return sdk.ChatChunk.model_validate({"choices": [choice]})

    pieces = [read_chunk(chunk("", "th", 0.1), False), read_chunk(chunk("a", "ink", 0.2), False)]
    assert pieces[0] is not None and pieces[1] is not None
    summed = pieces[0] + pieces[1]
    assert summed.generation_info == {"logprobs": {"content": [0.1, 0.2]}}
    assert (summed.message.additional_kwargs, summed.text) == ({"reasoning_content": "think"}, "a")


def test_a_chunk_that_says_nothing_of_the_first_answer_is_passed_over() -> None:
    for choices in ([], [{"index": 1, "delta": {"content": "other"}}], [{"index": 0, "delta": {"role": "assistant"}}]):
        assert read_chunk(sdk.ChatChunk.model_validate({"choices": choices}), False) is None


# Messages


def test_system_messages_in_a_row_become_one() -> None:
    told = to_wire([SystemMessage("a"), SystemMessage("b"), HumanMessage("c"), SystemMessage("d")])
    assert [(one["role"], one["content"]) for one in told] == [("system", "a\n\nb"), ("user", "c"), ("system", "d")]


def test_an_answer_in_blocks_goes_back_as_text_and_tool_calls() -> None:
    call = {"type": "tool_call", "id": "1", "name": "get_weather", "args": {"city": "Oslo"}}
    said = AIMessage(
        content=[{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "Look."}, call],
        tool_calls=[call],  # type: ignore[list-item]
    )
    told = to_wire([said, ToolMessage([{"type": "text", "text": "sunny"}], tool_call_id="1")])
    assert told[0]["content"] == "Look."
    assert [one["function"]["name"] for one in told[0]["tool_calls"]] == ["get_weather"]
    assert told[1] == {"role": "tool", "tool_call_id": "1", "content": "sunny"}


# Structured output


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("schema", [Pet, PetDict, Pet.model_json_schema()])
def test_structured_output_comes_in_the_shape_of_its_schema(engine: ScriptedEngine, schema: Any, method: Any) -> None:
    answer = engine.model(user_id="alice").with_structured_output(schema, method=method).invoke("Rex")
    assert answer == (Pet(name="Rex", age=3) if schema is Pet else {"name": "Rex", "age": 3})
    [body] = engine.chats
    assert ("response_format" in body, "tools" in body) == (method == "json_schema", method == "function_calling")


def test_include_raw_gives_the_fault_instead_of_raising_it(engine: ScriptedEngine) -> None:
    model = engine.model(user_id="alice").with_structured_output(Pet, include_raw=True, stop=["age"])
    told = model.invoke("Rex")
    assert isinstance(told["raw"], AIMessage)
    assert told["parsed"] is None and isinstance(told["parsing_error"], core.OutputParserException)
    assert engine.model(user_id="alice").with_structured_output(Pet, include_raw=True).invoke("Rex")["parsed"].age == 3


def test_json_mode_needs_no_schema_and_the_others_do(engine: ScriptedEngine) -> None:
    model = engine.model(user_id="alice")
    assert model.with_structured_output(method="json_mode").invoke("hi") == {"setup": "a", "punchline": "b"}
    with pytest.raises(ValueError, match="needs a schema"):
        model.with_structured_output(method="json_schema")
    with pytest.raises(ValueError, match="yaml_mode"):
        model.with_structured_output(Pet, method="yaml_mode")  # type: ignore[arg-type]


# Errors

ERRORS = [
    (400, "no", sdk.BadRequestError, core.ModelInvalidRequestError),
    (400, "This model's maximum context length is 8 tokens.", sdk.BadRequestError, core.ContextOverflowError),
    (401, "no", sdk.AuthenticationError, core.ModelAuthenticationError),
    (403, "no", sdk.PermissionDeniedError, core.ModelPermissionDeniedError),
    (404, "no", sdk.NotFoundError, core.ModelNotFoundError),
    (413, "no", sdk.APIStatusError, core.ModelInvalidRequestError),
    (429, "no", sdk.RateLimitError, core.ModelRateLimitError),
    (503, "no", sdk.InternalServerError, core.ModelAPIError),
]


@pytest.mark.parametrize(("status", "message", "ours", "cores"), ERRORS)
async def test_an_error_is_the_sdks_and_langchains(
    engine: ScriptedEngine, status: int, message: str, ours: type[sdk.APIStatusError], cores: type[core.ModelError]
) -> None:
    engine.failure = Refusal(status, message)
    model = engine.model(user_id="alice")
    for kind in (ours, cores):
        with pytest.raises(kind, match=message):
            model.invoke("hello")
        with pytest.raises(kind):
            list(model.stream("hello"))
        with pytest.raises(kind):
            await model.ainvoke("hello")
    with pytest.raises(ours) as caught:
        model.invoke("hello")
    assert (caught.value.status_code, caught.value.code) == (status, "c")
    assert type(caught.value.__cause__).__module__ == "inferscale_sdk._errors"


def test_a_server_that_is_away_or_slow_raises_what_may_be_retried(engine: ScriptedEngine) -> None:
    for failure, ours, cores in (
        (httpx.ConnectError("refused"), sdk.APIConnectionError, core.ModelConnectionError),
        (httpx.ReadTimeout("slow"), sdk.APITimeoutError, core.ModelTimeoutError),
    ):
        engine.failure = failure
        with pytest.raises(ours) as caught:
            engine.model(user_id="alice").invoke("hello")
        assert isinstance(caught.value, cores) and caught.value.is_retryable
