from __future__ import annotations

from datetime import UTC, datetime

import pytest

from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.limits import MAX_FACT_CHARS, MAX_FACTS_PER_REQUEST, MAX_ID_CHARS, MAX_METADATA_BYTES
from inferscale_server.moments import EARLIEST, LATEST
from inferscale_server.remember import (
    DraftDefaults,
    drafts_from_facts,
    drafts_from_messages,
    parse_defaults,
    parse_timestamp,
    parse_user_id,
)
from inferscale_server.types import FactDraft

NONE = DraftDefaults()


def test_strings_and_objects_become_drafts() -> None:
    assert drafts_from_facts(["Rex is a dog", {"text": "I like tea", "speaker": "alice"}], NONE) == (
        FactDraft("Rex is a dog"),
        FactDraft("I like tea", "alice"),
    )


def test_a_fact_says_more_than_the_requests_defaults() -> None:
    defaults = parse_defaults("s1", 100, {"source": "chat", "lang": "en"})
    own = {"text": "b", "timestamp": 200, "session_id": "s2", "metadata": {"lang": "no"}}
    first, second = drafts_from_facts(["a", own], defaults)
    assert first == FactDraft("a", None, 100.0, "s1", {"source": "chat", "lang": "en"})
    assert second == FactDraft("b", None, 200.0, "s2", {"source": "chat", "lang": "no"})


def test_the_default_time_zero_is_a_time() -> None:
    assert drafts_from_facts([{"text": "a", "timestamp": 0}], parse_defaults(timestamp=5))[0].occurred_at == 0.0


def test_only_what_user_and_assistant_say_is_remembered() -> None:
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "My dog is Rex"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "{}", "tool_call_id": "1"},
        {"role": "assistant", "content": "Nice name", "name": "helper"},
    ]
    assert drafts_from_messages(messages, NONE) == (
        FactDraft("My dog is Rex", "user"),
        FactDraft("Nice name", "helper"),
    )


def test_text_parts_are_joined_and_other_parts_refused() -> None:
    parts = [{"type": "text", "text": "My dog"}, {"type": "text", "text": "is Rex"}]
    assert drafts_from_messages([{"role": "user", "content": parts}], NONE)[0].text == "My dog\nis Rex"
    with pytest.raises(InvalidRequest) as caught:
        drafts_from_messages([{"role": "user", "content": [*parts, {"type": "image_url", "image_url": {}}]}], NONE)
    assert caught.value.param == "messages[0].content[2]"


def test_outer_blanks_are_not_part_of_a_fact() -> None:
    assert drafts_from_facts(["  Rex \n"], NONE)[0].text == "Rex"


@pytest.mark.parametrize("content", ["", " \n", None, 5, [], [{"type": "text", "text": " "}], {}, "a\0b", "a\ud800b"])
def test_a_message_without_usable_text_is_named(content: object) -> None:
    said = {"role": "user", "content": "x"}
    with pytest.raises(InvalidRequest) as caught:
        drafts_from_messages([said, said, said, {"role": "user", "content": content}], NONE)
    assert caught.value.param == "messages[3].content"


@pytest.mark.parametrize(
    ("fact", "param"),
    [
        ("", "facts[1]"),
        (5, "facts[1]"),
        ({}, "facts[1].text"),
        ({"text": "\t"}, "facts[1].text"),
        ({"text": "a", "colour": "red"}, "facts[1].colour"),
        ({"text": "a", "speaker": ""}, "facts[1].speaker"),
        ({"text": "a", "speaker": "a\nb"}, "facts[1].speaker"),
        ({"text": "a", "timestamp": "yesterday"}, "facts[1].timestamp"),
        ({"text": "a", "session_id": " s"}, "facts[1].session_id"),
        ({"text": "a", "metadata": []}, "facts[1].metadata"),
        ({"text": "a", "metadata": {"x": float("nan")}}, "facts[1].metadata"),
        ({"text": "a", "metadata": {"x": "\ud800"}}, "facts[1].metadata"),
    ],
)
def test_a_bad_fact_is_named(fact: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        drafts_from_facts(["good", fact], NONE)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "messages", [[{"role": "wizard", "content": "x"}], [{"content": "x"}], ["x"], [], {}, None, "x"]
)
def test_what_is_not_a_list_of_messages_is_refused(messages: object) -> None:
    with pytest.raises(InvalidRequest):
        drafts_from_messages(messages, NONE)


def test_sizes_over_a_limit_are_too_large_and_at_the_limit_are_not() -> None:
    assert len(drafts_from_facts(["x" * MAX_FACT_CHARS] * MAX_FACTS_PER_REQUEST, NONE)) == MAX_FACTS_PER_REQUEST
    oversize: list[list[object]] = [
        ["x" * (MAX_FACT_CHARS + 1)],
        ["x"] * (MAX_FACTS_PER_REQUEST + 1),
        [{"text": "x", "metadata": {"k": "v" * MAX_METADATA_BYTES}}],
        [{"text": "x", "speaker": "s" * 257}],
    ]
    for facts in oversize:
        with pytest.raises(TooLarge):
            drafts_from_facts(facts, NONE)


@pytest.mark.parametrize(
    "written",
    [1_700_000_000, 1_700_000_000.0, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-15T00:13:20+02:00"],
)
def test_one_moment_is_the_same_however_it_is_written(written: object) -> None:
    assert parse_timestamp(written, "timestamp") == 1_700_000_000.0


def test_early_and_late_moments_are_kept_exactly() -> None:
    assert parse_timestamp("0001-01-01T14:00:00+14:00", "t") == EARLIEST
    assert parse_timestamp("9999-12-31T11:59:59-12:00", "t") == LATEST
    assert parse_timestamp("2024-02-29", "t") == datetime(2024, 2, 29, tzinfo=UTC).timestamp()
    assert parse_timestamp(-1, "t") == -1.0
    assert parse_timestamp(None, "t") is None


@pytest.mark.parametrize(
    "written", [True, float("nan"), float("inf"), 1_700_000_000_000, 10**400, "", "now", "2023-13-01", [], {}]
)
def test_what_is_not_a_moment_is_refused_by_name(written: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_timestamp(written, "facts[0].timestamp")
    assert caught.value.param == "facts[0].timestamp"


@pytest.mark.parametrize("user", ["alice", "a/b", "..", "test_user1", "Ålesund 🐕", "a b", "x" * MAX_ID_CHARS])
def test_a_usable_user_id_is_taken_as_it_is(user: str) -> None:
    assert parse_user_id(user, "user_id") == user


@pytest.mark.parametrize(
    "user",
    [
        "",
        " alice",
        "alice ",
        "\u00a0alice",
        "al\0ice",
        "al\nice",
        "\x7f",
        "a\ud800",
        "x" * (MAX_ID_CHARS + 1),
        5,
        None,
        [],
    ],
)
def test_an_unusable_user_id_is_refused_by_name(user: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_user_id(user, "inferscale.user_id")
    assert caught.value.param == "inferscale.user_id"
