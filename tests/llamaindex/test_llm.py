"""The LLM: what it sends, what it makes of the answer, whom it answers for."""

from __future__ import annotations

import json
import pickle
from importlib import import_module
from typing import Any

import pytest
from llama_index.core.base.llms.types import DocumentBlock, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms import LLM, ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.inferscale import InferScaleLLM
from pydantic import BaseModel

from inferscale_sdk import APIStatusError

from .conftest import MakeLLM
from .scripted import KEY, ScriptedServer, call, say


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = FunctionTool.from_defaults(add)


class Dog(BaseModel):
    """A dog."""

    name: str


def test_llamaindex_own_packages_stay_importable_beside_ours() -> None:
    """An `__init__.py` of ours in a shared namespace would hide every other LlamaIndex package."""
    for name in ("llama_index", "llama_index.llms", "llama_index.memory"):
        assert import_module(name).__file__ is None


def ask(text: str = "What is my dog called?") -> list[ChatMessage]:
    return [ChatMessage(content=text)]


def test_it_is_an_llm_that_calls_functions() -> None:
    assert FunctionCallingLLM in InferScaleLLM.__mro__ and LLM in InferScaleLLM.__mro__
    assert InferScaleLLM().metadata.is_function_calling_model


def test_a_chat_is_sent_for_its_user_with_its_options(server: ScriptedServer, make_llm: MakeLLM) -> None:
    llm = make_llm(user_id="alice", temperature=0.0, max_tokens=5, memory={"k": 3}, additional_kwargs={"seed": 1})
    llm.chat([ChatMessage(role="system", content="Be brief."), *ask("Hi")], top_p=0.5, memory={"mode": "text"})
    (body,) = server.chats
    assert body == {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "inferscale": {"user_id": "alice", "memory": {"k": 3, "mode": "text"}},
        **{"temperature": 0.0, "max_tokens": 5, "seed": 1, "top_p": 0.5},
    }


def test_an_answer_says_what_it_was_given_and_what_it_took(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.facts["alice"] = ["My dog is called Bruno."]
    response = make_llm(user_id="alice").chat(ask())
    assert response.message.content == "My dog is called Bruno."
    assert response.raw["inferscale"]["facts"][0]["text"] == "My dog is called Bruno."
    assert response.additional_kwargs == {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


async def test_all_eight_ways_to_ask_give_the_same_answer(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.facts["alice"] = ["My dog is called\nBruno."]
    llm, question = make_llm(user_id="alice"), "What is my dog called?"
    texts = [
        llm.chat(ask(question)).message.content,
        (await llm.achat(ask(question))).message.content,
        list(llm.stream_chat(ask(question)))[-1].message.content,
        [each async for each in await llm.astream_chat(ask(question))][-1].message.content,
        llm.complete(question).text,
        (await llm.acomplete(question)).text,
        list(llm.stream_complete(question))[-1].text,
        [each async for each in await llm.astream_complete(question)][-1].text,
    ]
    assert texts == ["My dog is called\nBruno."] * 8
    assert all(body["messages"] == [{"role": "user", "content": question}] for body in server.chats)


def test_a_stream_is_cumulative_and_its_last_part_is_whole(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.replies.append(say("one\ntwo\n"))
    parts = list(make_llm(user_id="alice").stream_chat(ask()))
    assert [part.delta for part in parts] == ["one\n", "two\n", ""]
    assert [part.message.content for part in parts] == ["one\n", "one\ntwo\n", "one\ntwo\n"]
    assert parts[-1].raw["inferscale"]["mode"] == "kv" and parts[-1].additional_kwargs["total_tokens"] == 10


def test_tools_are_offered_and_a_call_is_read(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.replies.append(call("add", a=1, b=2))
    llm = make_llm(user_id="alice")
    response = llm.chat_with_tools([ADD], user_msg="1 + 2?", tool_required=True)
    (selection,) = llm.get_tool_calls_from_response(response)
    assert (selection.tool_id, selection.tool_name, selection.tool_kwargs) == ("call-1", "add", {"a": 1, "b": 2})
    (body,) = server.chats
    assert body["tools"][0]["function"]["name"] == "add"
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)


@pytest.mark.parametrize(
    ("choice", "sent"),
    [(None, "auto"), ("none", "none"), ("add", {"type": "function", "function": {"name": "add"}})],
)
def test_a_tool_can_be_chosen_by_name(server: ScriptedServer, make_llm: MakeLLM, choice: Any, sent: Any) -> None:
    make_llm(user_id="alice").chat_with_tools([ADD], user_msg="1 + 2?", tool_choice=choice)
    assert server.chats[0]["tool_choice"] == sent


def test_without_tools_no_tool_field_is_sent(server: ScriptedServer, make_llm: MakeLLM) -> None:
    make_llm(user_id="alice").chat_with_tools([], user_msg="Hi")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & server.chats[0].keys()


async def test_a_streamed_tool_call_is_whole_at_the_end_and_readable_before(
    server: ScriptedServer, make_llm: MakeLLM
) -> None:
    server.replies.append(call("add", a=1, b=2))
    llm = make_llm(user_id="alice")
    parts = [part async for part in await llm.astream_chat_with_tools([ADD], user_msg="1 + 2?")]
    read = [llm.get_tool_calls_from_response(part, error_on_no_tool_call=False) for part in parts]
    assert [call.tool_kwargs for (call,) in read][-1] == {"a": 1, "b": 2}
    assert [call.tool_name for (call,) in read] == ["add"] * len(parts)


def test_two_calls_are_cut_to_one_where_only_one_is_allowed(server: ScriptedServer, make_llm: MakeLLM) -> None:
    both = call("add", a=1, b=2)
    both["tool_calls"] = [*both["tool_calls"], *call("add", a=1, b=2)["tool_calls"]]
    server.replies.extend([both, both])
    llm = make_llm(user_id="alice")
    one = llm.chat_with_tools([ADD], user_msg="?")
    two = llm.chat_with_tools([ADD], user_msg="?", allow_parallel_tool_calls=True)
    assert [len(llm.get_tool_calls_from_response(each)) for each in (one, two)] == [1, 2]


def test_an_answer_without_a_tool_call_is_an_error_where_one_is_needed(make_llm: MakeLLM) -> None:
    llm = make_llm(user_id="alice")
    response = llm.chat(ask())
    with pytest.raises(ValueError, match="no tool"):
        llm.get_tool_calls_from_response(response)


def test_a_tool_round_goes_back_word_by_word(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.replies.append(call("add", a=1, b=2))
    llm = make_llm(user_id="alice")
    asked = llm.chat_with_tools([ADD], user_msg="1 + 2?").message
    result = ChatMessage(role="tool", content="3", additional_kwargs={"tool_call_id": "call-1"})
    llm.chat([*ask("1 + 2?"), asked, result])
    _, sent, answer = server.chats[-1]["messages"]
    assert sent["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert answer == {"role": "tool", "content": "3", "tool_call_id": "call-1"}


def test_another_llms_tool_calls_are_read_in_both_forms(server: ScriptedServer, make_llm: MakeLLM) -> None:
    block = ToolCallBlock(tool_call_id="x", tool_name="add", tool_kwargs={"a": 1})
    plain = {"id": "y", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    old = ChatMessage(role="assistant", additional_kwargs={"tool_calls": [plain]})
    make_llm(user_id="alice").chat([*ask(), ChatMessage(role="assistant", blocks=[block]), old])
    _, new_form, old_form = server.chats[0]["messages"]
    assert new_form["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert old_form["tool_calls"] == [plain]


def test_leading_system_messages_become_one(server: ScriptedServer, make_llm: MakeLLM) -> None:
    systems = [ChatMessage(role="system", content=text) for text in ("First.", "Second.")]
    make_llm(user_id="alice").chat([*systems, *ask()])
    assert [message["role"] for message in server.chats[0]["messages"]] == ["system", "user"]
    assert server.chats[0]["messages"][0]["content"] == "First.\n\nSecond."


def test_images_are_sent_and_other_blocks_refused(server: ScriptedServer, make_llm: MakeLLM) -> None:
    picture = ImageBlock(image=b"\x89PNG", image_mimetype="image/png")
    llm = make_llm(user_id="alice")
    llm.chat([ChatMessage(blocks=[TextBlock(text="What is it?"), picture])])
    text, image = server.chats[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    with pytest.raises(ValueError, match="DocumentBlock"):
        llm.chat([ChatMessage(blocks=[DocumentBlock(data=b"x", title="x", document_mimetype="text/plain")])])


def test_a_structured_answer_is_one_forced_tool_call(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.replies.append(call("Dog", name="Bruno"))
    dog = make_llm(user_id="alice").structured_predict(Dog, PromptTemplate("Which dog has {who}?"), who="Alice")
    assert dog == Dog(name="Bruno")
    assert server.chats[0]["tool_choice"] == "required"


async def test_an_async_structured_answer_is_the_same(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.replies.append(call("Dog", name="Bruno"))
    assert await make_llm(user_id="alice").astructured_predict(Dog, PromptTemplate("Which?")) == Dog(name="Bruno")


def test_a_streamed_structured_answer_fills_up(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.replies.append(call("Dog", name="Bruno"))
    dogs = list(make_llm(user_id="alice").stream_structured_predict(Dog, PromptTemplate("Which dog?")))
    assert dogs[-1] == Dog(name="Bruno")


def test_a_call_may_name_another_user(server: ScriptedServer, make_llm: MakeLLM) -> None:
    llm = make_llm(user_id="alice", session_id="s1")
    llm.chat(ask(), user_id="bob", session_id="s2")
    llm.chat(ask())
    named = [(body["inferscale"]["user_id"], body["inferscale"]["session_id"]) for body in server.chats]
    assert named == [("bob", "s2"), ("alice", "s1")]


async def test_a_chat_without_a_user_is_refused_and_not_sent(server: ScriptedServer, make_llm: MakeLLM) -> None:
    llm = make_llm()
    with pytest.raises(ValueError, match="no user"):
        llm.chat(ask())
    with pytest.raises(ValueError, match="no user"):
        await llm.astream_chat(ask())
    with pytest.raises(ValueError, match="no user"):
        llm.complete("Hi")
    assert server.seen == []


def test_the_servers_errors_come_through(server: ScriptedServer, make_llm: MakeLLM) -> None:
    server.broken.add("/v1/chat/completions")
    llm = make_llm(user_id="alice")
    with pytest.raises(APIStatusError, match="broken"):
        llm.chat(ask())
    with pytest.raises(APIStatusError, match="broken"):
        list(llm.stream_chat(ask()))


@pytest.mark.parametrize("fields", [{"user_idd": "alice"}, {"user_id": " alice"}, {"user_id": ""}, {"max_tokens": 0}])
def test_a_wrong_constructor_argument_is_an_error_that_names_it(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        InferScaleLLM(**fields)


def test_the_documented_constructor_arguments_work_and_make_no_connection() -> None:
    llm = InferScaleLLM(
        "alice",
        **{"session_id": "s", "model": "tiny", "memory": {"mode": "kv"}, "temperature": 0.2, "max_tokens": 9},
        **{"additional_kwargs": {"seed": 1}, "context_window": 2048, "is_function_calling_model": False},
        **{"base_url": "http://localhost:1", "api_key": KEY, "timeout": 1.5, "max_retries": 0},
    )
    assert (llm.metadata.context_window, llm.metadata.num_output, llm.metadata.model_name) == (2048, 9, "tiny")
    assert not llm.metadata.is_function_calling_model


def test_the_key_is_in_no_serialised_form() -> None:
    llm = InferScaleLLM(user_id="alice", base_url="http://localhost:1", api_key=KEY)
    forms = [json.dumps(llm.to_dict()), llm.to_json(), repr(llm), str(llm), repr(llm.__dict__), repr(llm._clients)]
    assert not any(KEY in form for form in forms)
    assert KEY.encode() not in pickle.dumps(llm)
    assert InferScaleLLM.from_dict(llm.to_dict()).user_id == "alice"


async def test_a_client_of_the_other_kind_is_asked_for_by_name(server: ScriptedServer) -> None:
    with pytest.raises(TypeError, match="async_client="):
        await InferScaleLLM("alice", client=server.client()).achat(ask())
    with pytest.raises(TypeError, match="client="):
        InferScaleLLM("alice", async_client=server.async_client()).chat(ask())
    with pytest.raises(ValueError, match="not both"):
        InferScaleLLM("alice", client=server.client(), api_key=KEY)
