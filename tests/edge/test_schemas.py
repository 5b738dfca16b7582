"""Claims about schemas, patterns and choices: what costs the engine seconds, or never ends, does not reach it."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.edge.guard import Guard
from inferscale_server.edge.patterns import written_out
from inferscale_server.edge.refs import refers_to_itself
from inferscale_server.edge.schemas import check_schemas
from inferscale_server.errors import InvalidRequest
from inferscale_server.limits import (
    MAX_PATTERN_PARTS,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_CHOICES,
    MAX_SCHEMA_DEPTH,
    MAX_TOOLS,
)
from tests.edge.asgi import FEW, EchoApp, post_raw

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 80}, "home": {"$ref": "#/$defs/place"}},
    "$defs": {"place": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}}},
    "required": ["name"],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["$ref", "enum", "pattern", "minItems", "properties", "json", "regex", "choice", "type"])
            | st.text(max_size=4),
            inner | st.sampled_from(["#", "#/properties", "#/enum/0", "json_schema", "{}", "(a{9}"]),
            max_size=4,
        )
    ),
    max_leaves=20,
)


def formatted(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


def tool(parameters: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "find", "parameters": parameters}}


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def spaces_of(schema: object) -> dict[str, Mapping[str, object]]:
    """Every place in which a client can put a schema."""
    return {
        "response_format": formatted(schema),
        "structured_outputs": {"structured_outputs": {"json": schema}},
        "text": {"structured_outputs": {"json": json.dumps(schema)}},
        "tag": {"structured_outputs": {"structural_tag": json.dumps({"structures": [{"schema": schema}]})}},
        "structures": {"response_format": {"type": "structural_tag", "structures": [{"schema": schema}]}},
        "tools": {"tools": [tool(schema)]},
        "responses": {"text": {"format": {"type": "json_schema", "schema": schema}}},
        "flat tools": {"tools": [{"type": "function", "name": "find", "parameters": schema}]},
        "extra_body": {"extra_body": {"structured_outputs": {"json": schema}}},
    }


SPACES = sorted(spaces_of({}))
TOO_MUCH: dict[str, tuple[object, str]] = {
    "a billion items": ({"type": "array", "minItems": 1_000_000_000, "items": {"type": "string"}}, "schema_too_large"),
    "a long string": ({"type": "string", "maxLength": 1e9}, "schema_too_large"),
    "many properties": ({"type": "object", "minProperties": 1_001}, "schema_too_large"),
    "many lengths": ({"anyOf": [{"type": "string", "maxLength": 900}] * 6}, "schema_too_large"),
    "many names": ({"properties": {f"p{i}": {} for i in range(257)}}, "schema_too_large"),
    "many choices": ({"enum": [str(i) for i in range(MAX_SCHEMA_CHOICES + 1)]}, "schema_too_large"),
    "many choices in all": ({"anyOf": [{"enum": [*range(501)]}, {"enum": [*range(501)]}]}, "schema_too_large"),
    "many bytes": ({"description": "x" * MAX_SCHEMA_BYTES}, "schema_too_large"),
    "deep": (deep(MAX_SCHEMA_DEPTH), "schema_too_large"),
    "a pattern that multiplies": ({"type": "string", "pattern": "^((a|b){1000}){1000}$"}, "schema_too_large"),
    "itself": ({"$ref": "#"}, "invalid_schema"),
    "each other": (
        {
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
            "properties": {"x": {"$ref": "#/$defs/a"}},
        },
        "invalid_schema",
    ),
    "elsewhere": ({"$ref": "https://example.com/schema"}, "invalid_schema"),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_schema_that_would_stall_the_engine_is_refused_wherever_it_stands(what: str, space: str) -> None:
    schema, code = TOO_MUCH[what]
    with pytest.raises(InvalidRequest) as caught:
        check_schemas(spaces_of(schema)[space])
    assert (caught.value.code, caught.value.status) == (code, 400)
    assert caught.value.param


@pytest.mark.parametrize("space", SPACES)
def test_an_ordinary_schema_passes_wherever_it_stands(space: str) -> None:
    check_schemas(spaces_of(PERSON)[space])


@pytest.mark.parametrize("written", [True, 1, "json", ["json"]])
@pytest.mark.parametrize("name", ["structured_outputs", "response_format"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_is_no_object_is_a_400_in_openais_shape(path: str, name: str, written: object) -> None:
    answer = await post_raw(Guard(app := EchoApp()), json.dumps({name: written}).encode(), path=path)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("invalid_schema", name)
    assert app.scopes == []


@pytest.mark.parametrize("inner", [None, {}, {"name": "x"}, {"name": "x", "schema": None}, {"schema": True}])
def test_a_response_format_without_its_schema_is_refused(inner: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_schemas({"response_format": {"type": "json_schema", "json_schema": inner}})
    assert caught.value.code == "invalid_schema"


@pytest.mark.parametrize("field", [{"json": "{"}, {"json": "[" * 60_000}, {"structural_tag": "no"}])
def test_json_in_a_string_is_json(field: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        check_schemas({"structured_outputs": field})


def test_more_tools_or_choices_than_the_limit_are_refused() -> None:
    check_schemas({"tools": [tool(PERSON)] * MAX_TOOLS})
    for body in (
        {"tools": [tool(PERSON)] * (MAX_TOOLS + 1)},
        {"structured_outputs": {"choice": ["x"] * (MAX_SCHEMA_CHOICES + 1)}},
        {"structured_outputs": {"regex": "(a{1000}){1000}"}},
        {"structured_outputs": {"grammar": 'root ::= "a"{1,100000}'}},
        {"structured_outputs": {"regex": "a" * 5_000}},
        {"tools": [tool({"description": "x" * 60_000})] * 5},
    ):
        with pytest.raises(InvalidRequest) as caught:
            check_schemas(body)
        assert caught.value.code == "schema_too_large"


@FEW
@given(st.dictionaries(st.sampled_from(["response_format", "structured_outputs", "tools", "text"]), JSON, max_size=4))
def test_no_json_makes_the_check_fail_otherwise_than_by_a_400(body: dict[str, object]) -> None:
    try:
        check_schemas(body)
    except InvalidRequest as error:
        assert error.code in ("invalid_schema", "schema_too_large")


@pytest.mark.parametrize(
    ("schema", "circular"),
    [
        (PERSON, False),
        ({"$ref": "#"}, True),
        ({"properties": {"next": {"$ref": "#"}}}, True),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}}, "x": {"$ref": "#/$defs/a"}}, False),
        ({"$defs": {"a/b": {"items": {"$ref": "#/$defs/a~1b"}}}}, True),
        ({"anyOf": [{"type": "string"}, {"items": {"$ref": "#/anyOf/1"}}]}, True),
        ({"properties": {"$ref": {"type": "string"}}}, False),
        ({"$ref": "#/nowhere"}, False),
        ({"$ref": "#/anyOf/99", "anyOf": []}, False),
    ],
)
def test_a_reference_to_what_holds_it_is_seen(schema: object, circular: bool) -> None:
    assert refers_to_itself(schema) is circular


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("", 0),
        ("abc", 3),
        ("a{3}", 3),
        ("a{2,5}b", 6),
        ("(ab){3}", 6),
        ("((ab){3}c){2}", 14),
        (r"\{3}[(){9}]{2}\(", 6),
        ("a{0}", 1),
        (")(", 1),
    ],
)
def test_a_pattern_is_counted_as_if_it_was_written_out(pattern: str, parts: int) -> None:
    assert written_out(pattern) == parts


@FEW
@given(st.text(alphabet="ab()[]{}\\,0123456789", max_size=40))
def test_any_pattern_can_be_counted(pattern: str) -> None:
    assert written_out(pattern + "(" * 3 + "a{9999999}" * 3) >= 0
    assert written_out("(" + pattern.replace("\\", "").replace("[", "") + "){20000}x{20000}") > MAX_PATTERN_PARTS
