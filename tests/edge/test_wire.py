"""Claims about what a chat may ask of its memory."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.edge.wire import ChatMemory, parse_chat_memory
from inferscale_server.errors import InvalidRequest, RequestError, TooLarge
from inferscale_server.filters import parse_filter
from inferscale_server.limits import MAX_CONTEXT_TEXTS, MAX_FACT_CHARS, MAX_K
from inferscale_server.types import LOCAL_TENANT, Owner, Scope
from tests.edge.asgi import FEW

ALICE = Owner(LOCAL_TENANT, "alice")


def fault_of(body: Mapping[str, object]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_chat_memory(body)
    assert caught.value.status in (400, 413)
    return caught.value


@pytest.mark.parametrize("body", [{}, {"user": None}, {"inferscale": None}])
def test_a_chat_that_names_no_user_has_no_owner(body: Mapping[str, object]) -> None:
    assert parse_chat_memory(body) == ChatMemory(owner=None)


def test_openais_user_is_the_user_when_inferscale_is_absent() -> None:
    assert parse_chat_memory({"user": "alice"}) == ChatMemory(owner=ALICE)


def test_two_names_for_the_user_must_agree() -> None:
    assert parse_chat_memory({"user": "alice", "inferscale": {"user_id": "alice"}}).owner == ALICE
    with pytest.raises(InvalidRequest) as caught:
        parse_chat_memory({"user": "bob", "inferscale": {"user_id": "alice"}})
    assert (caught.value.code, caught.value.param) == ("conflicting_user", "user")


def test_every_option_is_read() -> None:
    memory = {"mode": "kv", "k": 5, "min_score": 0, "context": ["a", "b"], "include_text": False, "remember": False}
    parsed = parse_chat_memory({"inferscale": {"user_id": "alice", "session_id": "s", "memory": memory}})
    assert parsed == ChatMemory(ALICE, "s", "kv", 5, 0.0, ("a", "b"), False)


def test_defaults_leave_the_choice_to_the_server() -> None:
    assert parse_chat_memory({"inferscale": {"user_id": "alice"}}) == ChatMemory(ALICE)
    assert ChatMemory(ALICE).mode == "auto" and ChatMemory(ALICE).include_text


@pytest.mark.parametrize(
    ("memory", "param"),
    [
        ({"mode": "fast"}, "mode"),
        ({"mode": None}, "mode"),
        ({"k": "5"}, "k"),
        ({"k": True}, "k"),
        ({"k": MAX_K + 1}, "k"),
        ({"min_score": float("nan")}, "min_score"),
        ({"min_score": 2}, "min_score"),
        ({"context": "a"}, "context"),
        ({"context": ["a", 5]}, "context[1]"),
        ({"context": ["x" * (MAX_FACT_CHARS + 1)]}, "context[0]"),
        ({"context": ["x"] * (MAX_CONTEXT_TEXTS + 1)}, "context"),
        ({"include_text": 1}, "include_text"),
        ({"remember": "yes"}, "remember"),
        ({"filter": {}}, "filter"),
    ],
)
def test_a_bad_option_is_named_by_its_path(memory: Mapping[str, object], param: str) -> None:
    fault = fault_of({"inferscale": {"user_id": "alice", "memory": memory}})
    assert fault.param == f"inferscale.memory.{param}"


def test_a_filter_is_read_and_a_bad_one_says_why() -> None:
    memory = {"filter": {"topic": {"in": ["car", "dog"]}}}
    parsed = parse_chat_memory({"inferscale": {"user_id": "alice", "memory": memory}})
    assert parsed.where == parse_filter(memory["filter"])
    fault = fault_of({"inferscale": {"user_id": "alice", "memory": {"filter": {"topic": {"above": 3}}}}})
    assert (fault.code, fault.param) == ("invalid_filter", "inferscale.memory.filter")


def test_what_is_too_long_is_413() -> None:
    body = {"inferscale": {"user_id": "alice", "memory": {"context": ["x" * (MAX_FACT_CHARS + 1)]}}}
    assert isinstance(fault_of(body), TooLarge)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"user": ""}, "user"),
        ({"user": " alice"}, "user"),
        ({"user": 5}, "user"),
        ({"inferscale": "alice"}, "inferscale"),
        ({"inferscale": []}, "inferscale"),
        ({"inferscale": {}}, "inferscale.user_id"),
        ({"inferscale": {"user_id": "alice "}}, "inferscale.user_id"),
        ({"inferscale": {"user_id": "alice", "session_id": "s\0"}}, "inferscale.session_id"),
        ({"inferscale": {"user_id": "alice", "memory": 5}}, "inferscale.memory"),
        ({"inferscale": {"user_id": "alice", "tenant": "x"}}, "inferscale.tenant"),
    ],
)
def test_a_bad_user_or_session_is_named_by_its_path(body: Mapping[str, object], param: str) -> None:
    assert fault_of(body).param == param


def test_a_chat_is_remembered_only_when_it_asks_for_it() -> None:
    assert parse_chat_memory({"inferscale": {"user_id": "alice", "memory": {"remember": True}}}).remember
    assert not parse_chat_memory({"inferscale": {"user_id": "alice", "memory": {}}}).remember
    assert not parse_chat_memory({"user": "alice"}).remember


def test_agent_and_run_narrow_what_is_recalled() -> None:
    parsed = parse_chat_memory({"inferscale": {"user_id": "alice", "agent_id": "coach", "run_id": "r1"}})
    assert (parsed.scope, parsed.where) == (Scope("coach", "r1"), parse_filter({"agent_id": "coach", "run_id": "r1"}))
    assert fault_of({"inferscale": {"user_id": "alice", "run_id": " r1"}}).param == "inferscale.run_id"


def test_a_long_unknown_field_is_not_repeated_in_full() -> None:
    fault = fault_of({"inferscale": {"user_id": "alice", "x" * 100_000: 1}})
    assert len(fault.message) < 150


options = st.sampled_from(
    ["user_id", "session_id", "memory", "mode", "k", "min_score", "filter", "context", "remember", "and", "x"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("alice"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(options, inner, max_size=4),
    max_leaves=12,
)


@FEW
@given(values, values)
def test_any_json_is_a_memory_or_a_client_error(extension: object, user: object) -> None:
    try:
        parsed = parse_chat_memory({"inferscale": extension, "user": user})
    except RequestError as error:
        assert error.status in (400, 413)
        return
    assert parsed.owner is not None or (extension is None and user is None)


@pytest.mark.parametrize("name", ["user_id", "agent_id", "run_id", "memory", "mode", "k", "context", "remember"])
def test_an_option_of_memory_outside_of_its_object_is_refused_with_its_place(name: str) -> None:
    with pytest.raises(InvalidRequest, match="belongs into inferscale") as refused:
        parse_chat_memory({"model": "m", "messages": [], name: "alice"})
    assert (refused.value.code, refused.value.param) == ("unknown_field", name)


@pytest.mark.parametrize("name", ["inferscal", "infer_scale", "InferScale", "inferenceScale", "infer-scale"])
def test_a_misspelt_inferscale_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is 'inferscale' meant"):
        parse_chat_memory({name: {"user_id": "alice"}})


@pytest.mark.engine
def test_no_field_of_vllms_chats_is_taken_for_a_slip() -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    for request in (ChatCompletionRequest, ResponsesRequest):
        parse_chat_memory(dict.fromkeys(request.model_fields.keys() - {"user"}))
