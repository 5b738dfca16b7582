"""Claims about which bytes are accepted as a JSON object."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.edge.json_body import parse_object
from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.limits import MAX_JSON_DEPTH, MAX_JSON_VALUES
from tests.edge.asgi import FEW

BAD_BODIES = {
    "empty": b"",
    "array": b"[]",
    "string": b'"a"',
    "half": b'{"a":',
    "two": b"{}{}",
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "latin-1": '{"a": "ä"}'.encode("latin-1"),
    "encoded surrogate": b'{"a": "\xed\xa0\x80"}',
    "escaped surrogate": rb'{"a": "\ud800"}',
    "surrogate in a key": rb'{"\udc00": 1}',
    "surrogates the wrong way round": rb'{"a": ["\udc00\ud800"]}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "infinite by overflow": b'{"a": 1e999}',
    "beyond 64 bits": b'{"k": 18446744073709551616}',
    "a million digits": b'{"k": ' + b"9" * 1_000_000 + b"}",
    "repeated key": b'{"user_id": "a", "user_id": "b"}',
    "repeated key, escaped": rb'{"user_id": "a", "user\u005fid": "b"}',
    "repeated key, nested": b'{"a": [{"b": 1, "b": 1}]}',
    "raw NUL": b'{"a": "\x00"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_what_is_not_one_plain_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_object(body)
    assert caught.value.code == "invalid_json"
    assert len(caught.value.message) < 250


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 900, 1_000, 100_000, 200_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_nesting_deeper_than_the_limit_is_refused(depth: int, brackets: str) -> None:
    opening = '{"a":' if brackets == "{}" else "["
    body = '{"a":' + opening * (depth - 1) + "1" + brackets[1] * (depth - 1) + "}"
    with pytest.raises(InvalidRequest, match="deeper than"):
        parse_object(body.encode())


def test_nesting_up_to_the_limit_is_accepted() -> None:
    body = '{"a":' + "[" * (MAX_JSON_DEPTH - 1) + "]" * (MAX_JSON_DEPTH - 1) + "}"
    assert list(parse_object(body.encode())) == ["a"]


@pytest.mark.parametrize("one", [b"0,", b"[],", b"{},", b'"",'])
def test_more_values_than_the_limit_are_refused(one: bytes) -> None:
    body = b'{"a":[' + one * MAX_JSON_VALUES + b"0]}"
    with pytest.raises(TooLarge) as caught:
        parse_object(body)
    assert caught.value.code == "too_many_values"


def test_marks_inside_strings_are_not_values() -> None:
    text = r"[{,\\"[:4] + '"' + "," * MAX_JSON_VALUES
    assert parse_object(json.dumps({"a": text, "b": [1]}).encode()) == {"a": text, "b": [1]}


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


def test_an_escaped_backslash_before_a_u_is_no_surrogate() -> None:
    assert parse_object(rb'{"a": "\\ud800"}') == {"a": r"\ud800"}


def test_numbers_up_to_64_bits_are_accepted() -> None:
    body = {"low": -(2**63), "high": 2**64 - 1, "small": 1e-400}
    assert parse_object(json.dumps(body).encode()) == body


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@FEW
@given(st.dictionaries(st.text(), plain_values, max_size=4), st.booleans())
def test_every_plain_object_comes_through_unchanged(value: dict[str, object], ascii_only: bool) -> None:
    assert parse_object(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@FEW
@given(st.text(alphabet='{}[]",:\\u0dD81eE-. \n', max_size=60))
def test_json_like_noise_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_object(text.encode())
    except InvalidRequest:
        return
    json.dumps(parsed, ensure_ascii=False, allow_nan=False).encode()
