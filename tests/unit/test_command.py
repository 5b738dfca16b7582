"""Commands survive the trip to the engine, and nobody without the secret can make or change one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.command import PARAMS_KEY, Capture, Command, Extent, Injection, from_params, rows_of, to_params

from .builders import SECRET, extents

ROWS = 1_000
SAMPLE = Command(
    Injection((5, 6, 7, 8), extents((10, 3), (40, 1))),
    (Capture(17, 4, extents((100, 2), (90, 1))), Capture(18, 7, extents((200, 2)))),
)

pieces = st.lists(st.builds(Extent, st.integers(0, ROWS - 50), st.integers(1, 50)), min_size=1, max_size=4).map(tuple)


def of_rows(places: tuple[Extent, ...]) -> Injection:
    return Injection(tuple(range(sum(e.length for e in places))), places)


commands = st.builds(
    Command,
    st.none() | pieces.map(of_rows),
    st.lists(st.builds(Capture, st.integers(1, 2**31 - 1), st.integers(0, 10_000), pieces), max_size=3).map(tuple),
)


@given(commands)
def test_a_command_comes_back_as_it_went(command: Command) -> None:
    travelled = json.loads(json.dumps(to_params(command, SECRET)))
    assert from_params(travelled, SECRET, ROWS) == command


def test_a_command_of_another_secret_is_no_command() -> None:
    assert from_params(to_params(SAMPLE, SECRET), b"another secret", ROWS) is None


@pytest.mark.parametrize(("field", "place"), [("tokens", 0), ("rows", 0), ("rows", 1), ("mac", 0)])
def test_a_changed_number_is_noticed(field: str, place: int) -> None:
    params = copy.deepcopy(to_params(SAMPLE, SECRET))
    body = params[PARAMS_KEY]
    if field == "mac":
        body["mac"] = ("0" if body["mac"][0] != "0" else "1") + body["mac"][1:]
    else:
        body[field][place] += 1
    assert from_params(params, SECRET, ROWS) is None


@pytest.mark.parametrize("capture", [0, 1])
@pytest.mark.parametrize("field", ["stamp", "start", "row"])
def test_a_changed_capture_is_noticed(capture: int, field: str) -> None:
    params = copy.deepcopy(to_params(SAMPLE, SECRET))
    wire = params[PARAMS_KEY]["captures"][capture]
    if field == "row":
        wire[2][0] += 1
    else:
        wire[["stamp", "start"].index(field)] += 1
    assert from_params(params, SECRET, ROWS) is None


def test_captures_cannot_change_places() -> None:
    params = copy.deepcopy(to_params(SAMPLE, SECRET))
    params[PARAMS_KEY]["captures"].reverse()
    assert from_params(params, SECRET, ROWS) is None


def test_numbers_cannot_move_from_one_field_to_the_next() -> None:
    params = copy.deepcopy(to_params(SAMPLE, SECRET))
    body = params[PARAMS_KEY]
    body["rows"].insert(0, body["tokens"].pop())
    assert from_params(params, SECRET, ROWS) is None


def test_a_dropped_capture_is_noticed() -> None:
    params = to_params(SAMPLE, SECRET)
    params[PARAMS_KEY]["captures"].pop()
    assert from_params(params, SECRET, ROWS) is None


@pytest.mark.parametrize("places", [((ROWS - 1, 2),), ((-1, 2),), ((5, 0), (5, 2)), ((0, 3), (9, -1))])
def test_rows_outside_the_slab_are_refused_even_when_signed(places: tuple[tuple[int, int], ...]) -> None:
    assert from_params(to_params(Command(of_rows(extents(*places))), SECRET), SECRET, ROWS) is None


def test_an_injection_needs_a_row_a_token() -> None:
    with pytest.raises(AssertionError, match="2 rows for 3 tokens"):
        Injection((1, 2, 3), extents((0, 2)))


def test_rows_are_in_token_order() -> None:
    assert rows_of(extents((7, 2), (3, 3))) == [7, 8, 3, 4, 5]


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=16)
garbage = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["tokens", "rows", "captures", "mac", PARAMS_KEY]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(garbage, garbage)
def test_foreign_params_are_ignored_and_never_raise(params: Any, body: Any) -> None:
    assert from_params(params, SECRET, ROWS) is None
    assert from_params({PARAMS_KEY: body}, SECRET, ROWS) is None


@settings(max_examples=200)
@given(st.sampled_from(["tokens", "rows", "captures", "mac"]), garbage)
def test_one_garbage_field_makes_it_no_command(field: str, value: Any) -> None:
    params = to_params(SAMPLE, SECRET)
    before = params[PARAMS_KEY][field]
    params[PARAMS_KEY][field] = value
    assert value == before or from_params(params, SECRET, ROWS) is None
