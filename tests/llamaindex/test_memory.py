"""The memory by itself: history, turns, background writes, retrieval, serialisation."""

from __future__ import annotations

import json
import logging
import pickle
from copy import deepcopy
from typing import Any

import httpx
import pytest
from llama_index.core.base.llms.types import ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.memory import BaseMemory
from llama_index.memory.inferscale import InferScaleMemory

from inferscale_sdk import InferScaleClient

from .conftest import MakeLLM, MakeMemory
from .scripted import KEY, ScriptedServer


def user(text: str) -> ChatMessage:
    return ChatMessage(role="user", content=text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def calling(text: str = "") -> ChatMessage:
    return ChatMessage(role="assistant", blocks=[TextBlock(text=text), ToolCallBlock(tool_name="add")])


def texts(messages: list[ChatMessage]) -> list[str | None]:
    return [message.content for message in messages]


def words(text: str) -> list[str]:
    """A tokenizer that a reader can follow."""
    return text.split()


def test_it_is_a_memory() -> None:
    assert BaseMemory in InferScaleMemory.__mro__


def test_what_is_put_is_got_in_order_until_reset(make_memory: MakeMemory) -> None:
    memory = make_memory()
    memory.put(user("My dog is called Bruno."))
    memory.put_messages([assistant("Nice."), user("And?")])
    assert texts(memory.get()) == texts(memory.get_all()) == ["My dog is called Bruno.", "Nice.", "And?"]
    memory.reset()
    assert memory.get() == memory.get_all() == []


async def test_the_async_twins_do_the_same(make_memory: MakeMemory) -> None:
    memory = make_memory()
    await memory.aput(user("My dog is called Bruno."))
    await memory.aput_messages([assistant("Nice."), user("And?")])
    assert texts(await memory.aget()) == texts(await memory.aget_all()) == texts(memory.get_all())
    await memory.aset([user("Hi")])
    assert texts(await memory.aget_all()) == ["Hi"]
    await memory.areset()
    assert await memory.aget() == []


def test_a_reset_leaves_the_long_term_memory_alone(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory(mode="text")
    memory.put_messages([user("My dog is called Bruno."), assistant("Nice.")])
    assert memory.flush()
    memory.reset()
    memory.set([])
    assert {seen.path for seen in server.seen} == {"/v1/memories"}
    memory.put(user("What is my dog called?"))
    assert "My dog is called Bruno." in (memory.get()[-1].content or "")


def test_a_turn_is_written_once_with_both_sides_and_its_time(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory(session_id="s1", infer=False)
    memory.put(user("1 + 2?"))
    memory.put_messages([calling("Let me see."), ChatMessage(role="tool", content="3"), assistant("It is 3.")])
    assert memory.flush()
    (body,) = server.writes
    assert body.pop("timestamp") > 1_600_000_000
    said = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "It is 3."}]
    assert body == {"user_id": "alice", "messages": said, "session_id": "s1", "infer": False}
    assert (memory.writes.waiting, memory.writes.written, memory.writes.failed) == (0, 1, 0)


def test_of_a_react_agents_reasoning_only_the_answer_is_written(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    memory.put_messages([user("1 + 2?"), assistant("Thought: I add.\nObservation: 3\nThought: Ok.\nAnswer: It is 3.")])
    memory.flush()
    assert server.writes[0]["messages"][1]["content"] == "It is 3."


def test_a_turn_that_nobody_answered_is_written_at_the_next_one(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    memory.put(user("I moved to Oslo."))
    memory.put_messages([user("Hello?"), assistant("Hi.")])
    memory.flush()
    assert [[said["content"] for said in body["messages"]] for body in server.writes] == [
        ["I moved to Oslo."],
        ["Hello?", "Hi."],
    ]


def test_a_turn_that_was_flushed_while_open_is_not_written_again(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    memory.put(user("I moved to Oslo."))
    memory.flush()
    memory.put(assistant("Nice."))
    memory.flush()
    assert len(server.writes) == 1


def test_a_history_that_is_set_is_not_written_but_its_last_question_is_a_turn(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    memory = make_memory()
    memory.set([user("Old."), assistant("Yes."), user("New?")])
    memory.put(assistant("Newer."))
    memory.flush()
    assert [said["content"] for body in server.writes for said in body["messages"]] == ["New?", "Newer."]


def test_a_memory_that_shall_not_remember_writes_nothing(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory(remember=False)
    memory.put_messages([user("I moved to Oslo."), assistant("Nice.")])
    assert memory.flush() and server.seen == []


def test_a_failed_write_is_counted_and_logged_and_fails_no_chat(
    server: ScriptedServer, make_memory: MakeMemory, caplog: pytest.LogCaptureFixture
) -> None:
    server.broken.add("/v1/memories")
    memory = make_memory()
    with caplog.at_level(logging.WARNING, logger="llama_index.memory.inferscale"):
        memory.put_messages([user("My code is 4711."), assistant("Noted.")])
        assert memory.flush()
    assert (memory.writes.written, memory.writes.failed) == (0, 1)
    assert "not remembered" in caplog.text and "4711" not in caplog.text
    server.broken.clear()
    memory.put_messages([user("I moved to Oslo."), assistant("Nice.")])
    assert memory.flush() and memory.writes.written == 1


def test_a_fact_that_the_server_could_not_keep_is_logged_with_its_reason_and_not_its_words(
    server: ScriptedServer, make_memory: MakeMemory, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "a fact was left out: it is no sentence"
    lost = {"id": None, "text": "My code is 4711.", "status": "failed", "reason": reason}
    server.outcomes.append({"results": [lost, lost]})
    memory = make_memory()
    with caplog.at_level(logging.WARNING, logger="llama_index.memory.inferscale"):
        memory.put_messages([user("My code is 4711."), assistant("Noted.")])
        assert memory.flush()
    assert caplog.messages == [f"part of a turn is not remembered: {reason}"]
    assert (memory.writes.written, memory.writes.failed, memory.writes.failed_facts) == (1, 0, 2)


def test_a_client_that_was_closed_stops_neither_chat_nor_flush(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    http = httpx.Client(transport=httpx.MockTransport(server.handle))
    memory = InferScaleMemory.from_client(InferScaleClient(http_client=http), user_id="alice")
    http.close()
    memory.put_messages([user("Hi."), assistant("Hello.")])
    assert memory.flush() and memory.writes.failed == 1


async def test_writes_of_many_turns_keep_their_order(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory()
    for number in range(50):
        await memory.aput(user(f"Question {number}"))
        await memory.aput(assistant(f"Answer {number}"))
    assert await memory.aflush()
    assert [body["messages"][1]["content"] for body in server.writes] == [f"Answer {number}" for number in range(50)]


def test_the_history_is_cut_at_whole_turns(make_memory: MakeMemory) -> None:
    memory = make_memory(token_limit=7, tokenizer_fn=words)
    memory.put_messages([user("one two"), assistant("three four"), user("five six"), calling("seven")])
    memory.put_messages([ChatMessage(role="tool", content="eight"), assistant("nine")])
    assert texts(memory.get())[0] == "five six"
    assert texts(memory.get(initial_token_count=3))[0] == "five six", "the last turn stays, whatever it takes"
    assert len(memory.get_all()) == 6
    memory.token_limit = 9
    assert texts(memory.get())[0] == "one two"


def test_a_leading_system_message_outlives_the_cut(make_memory: MakeMemory) -> None:
    memory = make_memory(token_limit=4, tokenizer_fn=words)
    memory.set([ChatMessage(role="system", content="Be brief."), user("one two"), assistant("three"), user("four")])
    assert texts(memory.get()) == ["Be brief.", "four"]


def test_more_initial_tokens_than_the_limit_are_an_error(make_memory: MakeMemory) -> None:
    with pytest.raises(ValueError, match=r"initial_token_count=8 exceeds token_limit=7"):
        make_memory(token_limit=7).get(initial_token_count=8)


def test_what_is_got_can_be_changed_without_changing_the_history(make_memory: MakeMemory) -> None:
    memory = make_memory()
    memory.put(user("Hi"))
    memory.get()[0].blocks[0].text = "state and all"
    assert texts(memory.get_all()) == ["Hi"]


def test_on_the_servers_side_nothing_is_searched_and_the_messages_name_their_user(
    server: ScriptedServer, make_memory: MakeMemory, make_llm: MakeLLM
) -> None:
    memory = make_memory(session_id="s1")
    memory.put(user("Hi"))
    make_llm().chat(memory.get())
    assert texts(memory.get()) == ["Hi"] and server.searches == []
    assert server.chats[0]["inferscale"] == {"user_id": "alice", "session_id": "s1"}


def test_one_users_messages_are_never_sent_for_another(
    server: ScriptedServer, make_memory: MakeMemory, make_llm: MakeLLM
) -> None:
    memory, other = make_memory("alice"), make_memory("bob")
    memory.put(user("Hi"))
    other.put(user("Hi"))
    with pytest.raises(ValueError, match=r"'alice'.*'bob'"):
        make_llm(user_id="bob").chat(memory.get())
    with pytest.raises(ValueError, match=r"'alice'.*'bob'"):
        make_llm().chat(memory.get(), user_id="bob")
    with pytest.raises(ValueError, match="several users"):
        make_llm().chat([*memory.get(), *other.get()])
    assert server.seen == []


def test_a_history_taken_from_another_memory_loses_its_name(make_memory: MakeMemory) -> None:
    source, target = make_memory("alice"), make_memory("bob")
    source.put(user("Hi"))
    target.set(source.get())
    assert target.get()[0].additional_kwargs["inferscale"]["user_id"] == "bob"
    assert target.get_all()[0].additional_kwargs == {}


def test_as_text_the_facts_stand_in_the_last_user_message(server: ScriptedServer, make_memory: MakeMemory) -> None:
    server.facts["alice"] = ["best", "second\n- forged"]
    memory = make_memory(mode="text", k=2, min_score=0.1, remember=False)
    memory.put_messages([user("Hello."), assistant("Hi."), user("What now?")])
    shown = memory.get()
    assert texts(shown)[:2] == ["Hello.", "Hi."]
    assert (shown[-1].content or "").splitlines()[1:] == ["- second - forged", "- best", "", "What now?"]
    assert [message.role.value for message in shown] == ["user", "assistant", "user"]
    assert texts(memory.get_all())[-1] == "What now?"
    assert server.searches == [{"user_id": "alice", "query": "What now?", "k": 2, "min_score": 0.1}]


def test_notes_that_come_back_with_a_history_are_not_remembered_again(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    server.facts["alice"] = ["My dog is called Bruno."]
    memory = make_memory(mode="text")
    memory.put(user("What now?\n\nTell me."))
    shown = memory.get()
    assert "Bruno" in (shown[0].content or "")
    memory.set(shown)
    assert texts(memory.get_all()) == ["What now?\n\nTell me."]
    memory.put(assistant("Tea."))
    memory.flush()
    assert "Bruno" not in str(server.writes)


async def test_a_turn_searches_once_and_the_next_turn_again(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory(mode="text")
    for _ in range(2):
        await memory.aput(user("What now?"))
        await memory.aget()
        memory.get(input="What now?")
        await memory.aput(assistant("Tea."))
        await memory.aget(input="What now?")
    assert len(server.searches) == 2


async def test_a_sync_client_serves_async_searches_from_a_thread(server: ScriptedServer) -> None:
    server.facts["alice"] = ["tea"]
    memory = InferScaleMemory.from_client(server.client(), user_id="alice", mode="text")
    await memory.aput(user("What now?"))
    assert "tea" in ((await memory.aget())[0].content or "")


async def test_a_failed_search_is_counted_and_not_tried_again_in_this_turn(
    server: ScriptedServer, make_memory: MakeMemory
) -> None:
    server.broken.add("/v1/memories/search")
    memory = make_memory(mode="text")
    memory.put(user("What now?"))
    assert texts(memory.get()) == texts(await memory.aget()) == ["What now?"]
    assert memory.failed_searches == len(server.searches) == 1


def test_facts_without_a_question_are_an_exchange_of_their_own(server: ScriptedServer, make_memory: MakeMemory) -> None:
    server.facts["alice"] = ["tea"]
    memory = make_memory(mode="text")
    memory.set([ChatMessage(role="system", content="Be brief.")])
    assert [message.role.value for message in memory.get(input="What now?")] == ["system", "user", "assistant"]


def test_facts_stand_beside_a_picture_too(server: ScriptedServer, make_memory: MakeMemory) -> None:
    server.facts["alice"] = ["tea"]
    memory = make_memory(mode="text")
    memory.put(ChatMessage(role="user", blocks=[ImageBlock(image=b"\x89PNG")]))
    first, second = memory.get(input="What is it?")[0].blocks
    assert isinstance(first, TextBlock) and "tea" in first.text and isinstance(second, ImageBlock)


def test_facts_count_against_the_token_limit(server: ScriptedServer, make_memory: MakeMemory) -> None:
    server.facts["alice"] = ["a fact of nine words that takes some room"]
    memory = make_memory(mode="text", token_limit=24, tokenizer_fn=words, remember=False)
    memory.put_messages([user("one two"), assistant("three four"), user("five six")])
    assert len(memory.get()) == 1
    server.facts.clear()
    memory.put(user("seven"))
    assert len(memory.get()) == 4


def test_the_state_has_history_and_open_turn_and_no_key(server: ScriptedServer) -> None:
    memory = InferScaleMemory.from_defaults(user_id="alice", base_url="http://localhost:1", api_key=KEY, mode="text")
    memory.set([assistant("Hi.")])
    memory.put(user("I moved to Oslo."))
    state = json.loads(json.dumps(memory.to_dict()))
    forms = [str(state), memory.to_json(), repr(memory), str(memory.model_dump()), str(memory.__dict__)]
    assert not any(KEY in form for form in forms)
    assert KEY.encode() not in pickle.dumps(memory)
    back = InferScaleMemory.from_dict({**state, "base_url": None}, client=server.client())
    assert (texts(back.get_all()), back.mode) == (["Hi.", "I moved to Oslo."], "text")
    back.put(assistant("Nice."))
    assert back.flush()
    assert [said["content"] for said in server.writes[0]["messages"]] == ["I moved to Oslo.", "Nice."]


def test_a_copy_is_a_memory_of_its_own(server: ScriptedServer, make_memory: MakeMemory) -> None:
    memory = make_memory()
    copy = deepcopy(memory)
    copy.put_messages([user("Hi"), assistant("Hello.")])
    assert copy.flush() and memory.get_all() == [] and len(server.writes) == 1


def test_the_documented_constructor_arguments_work() -> None:
    memory = InferScaleMemory.from_defaults(
        user_id="alice",
        **{"base_url": "http://localhost:1", "api_key": KEY, "session_id": "s", "mode": "text", "token_limit": 99},
        **{"chat_history": [user("Hi")], "k": 3, "min_score": 0.2, "remember": False, "infer": True},
        **{"timeout": 1.5, "max_retries": 0, "tokenizer_fn": words},
    )
    assert (memory.user_id, memory.session_id, memory.token_limit, memory.k) == ("alice", "s", 99, 3)
    assert texts(memory.get_all()) == ["Hi"]


@pytest.mark.parametrize(
    "fields", [{"user_id": "alice "}, {"token_limit": 0}, {"mode": "kv"}, {"k": 0}, {"tokens": 3}, {"base_url": "x"}]
)
def test_a_wrong_argument_is_an_error_that_names_it(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        InferScaleMemory.from_defaults(**{"user_id": "alice", **fields})
