"""Filters: what matches, what is refused, and that nothing else can happen."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferscale_server.errors import InvalidRequest
from inferscale_server.filters import OPERATORS, NoneOf, parse_filter
from inferscale_server.limits import MAX_FILTER_CONDITIONS, MAX_FILTER_DEPTH, MAX_FILTER_VALUES
from inferscale_server.types import Fact, Owner

METADATA = {
    "city": "Oslo",
    "score": 4,
    "ratio": 0.5,
    "done": True,
    "nothing": None,
    "tags": ["pet", 7, False],
    "source": {"app": "notes", "page": {"n": 3}},
    "a.b": "dotted",
    "a": {"b": "nested"},
}
FACT = Fact(
    "f1", Owner("local", "alice"), 7, "x", "alice", 1_700_000_000.0, None, METADATA, 1_700_000_100.0, 1_700_000_200.0
)


@pytest.mark.parametrize(
    "written",
    [
        {"city": "Oslo"},
        {"city": {"eq": "Oslo"}},
        {"city": {"ne": "Bergen"}},
        {"city": {"in": ["Bergen", "Oslo"]}},
        {"city": {"nin": ["Bergen"]}},
        {"city": {"contains": "sl"}},
        {"city": {"gt": "Bergen", "lt": "Paris"}},
        {"score": {"gte": 3, "lte": 5}},
        {"score": 4.0},
        {"score": {"gt": -(10**300)}},
        {"done": True},
        {"done": {"ne": 1}},
        {"nothing": None},
        {"missing": None},
        {"missing": {"ne": "x"}},
        {"missing": {"nin": ["x"]}},
        {"tags": {"contains": "pet"}},
        {"tags": {"contains": 7}},
        {"source.app": "notes"},
        {"source.page.n": {"in": [1, 2, 3]}},
        {"a.b": "dotted"},
        {"speaker": "alice"},
        {"session_id": None},
        {"id": {"in": ["f0", "f1"]}},
        {"timestamp": {"gte": "2023-11-14", "lt": "2023-11-15T00:00:00+01:00"}},
        {"created_at": 1_700_000_100},
        {"updated_at": {"gt": 1_700_000_100}},
        {"expires_at": None},
        {"city": "Oslo", "score": 4},
        {"and": [{"score": {"gte": 3}}, {"score": {"lte": 5}}]},
        {"or": [{"city": "Bergen"}, {"score": 4}]},
        {"not": {"city": "Bergen"}},
        {"not": {"and": [{"city": "Oslo"}, {"or": [{"score": 1}, {"score": 2}]}]}},
    ],
)
def test_a_filter_that_holds_matches_and_its_negation_does_not(written: dict[str, object]) -> None:
    assert parse_filter(written).matches(FACT)
    assert not parse_filter({"not": written}).matches(FACT)


@pytest.mark.parametrize(
    "written",
    [
        {"city": "oslo"},
        {"done": 1},
        {"score": True},
        {"score": "4"},
        {"score": {"gt": "3"}},
        {"city": {"lt": 5}},
        {"done": {"gt": 0}},
        {"nothing": {"gt": 0}},
        {"missing": {"contains": "x"}},
        {"tags": {"contains": 0}},
        {"tags": "pet"},
        {"source": "notes"},
        {"source.app.name": "notes"},
        {"source.page": 3},
        {"and": [{"score": {"gte": 5}}, {"score": {"lte": 5}}]},
        {"score": {"gte": 5, "lte": 5}},
        {"text": "x"},
    ],
)
def test_a_filter_that_does_not_hold_does_not_match(written: dict[str, object]) -> None:
    assert not parse_filter(written).matches(FACT)


def nested(depth: int) -> dict[str, object]:
    return {"city": "Oslo"} if depth == 1 else {"not": nested(depth - 1)}


@pytest.mark.parametrize(
    "written",
    [
        None,
        [],
        {},
        "city = Oslo",
        [{"city": "Oslo"}],
        {"": 1},
        {3: 4},
        {"city": {}},
        {"city": {"like": "O%"}},
        {"city": {"$eq": "Oslo"}},
        {"city": {"eq": "Oslo", "Eq": "Oslo"}},
        {"city": ["Oslo"]},
        {"city": {"eq": ["Oslo"]}},
        {"city": {"eq": {"x": 1}}},
        {"city": {"in": "Oslo"}},
        {"city": {"in": []}},
        {"city": {"in": [["Oslo"]]}},
        {"city": {"in": ["x"] * (MAX_FILTER_VALUES + 1)}},
        {"score": {"gt": None}},
        {"score": {"gt": True}},
        {"score": {"gt": float("nan")}},
        {"score": float("inf")},
        {"and": []},
        {"or": {}},
        {"and": {"city": "Oslo"}},
        {"and": [{}]},
        {"not": []},
        {"not": [{"city": "Oslo"}]},
        {"not": None},
        {"AND": [{"city": "Oslo"}]},
        {"timestamp": "yesterday"},
        {"timestamp": 1e300},
        {"timestamp": {"contains": "2023"}},
        {"created_at": True},
        {"id": 5},
        {"speaker": {"gt": 3}},
        {"session_id": {"contains": None}},
        nested(MAX_FILTER_DEPTH + 1),
        {"or": [{"city": "Oslo"}] * (MAX_FILTER_CONDITIONS + 1)},
    ],
)
def test_whatever_else_is_written_is_refused_by_name(written: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_filter(written)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "invalid_filter", "filter")
    assert len(caught.value.message) < 400


def test_filters_at_their_limits_are_taken() -> None:
    assert parse_filter({"or": [{"city": "Oslo"}] * MAX_FILTER_CONDITIONS}).matches(FACT)
    assert parse_filter(nested(MAX_FILTER_DEPTH)).matches(FACT) == (MAX_FILTER_DEPTH % 2 == 1)
    assert parse_filter({"city": {"in": ["Oslo"] * MAX_FILTER_VALUES}}).matches(FACT)


KEYS = st.sampled_from(["and", "or", "not", "city", "score", "timestamp", "id", "a.b", "tags", "", *sorted(OPERATORS)])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(KEYS | st.text(max_size=4), below, max_size=4),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(JSON, st.dictionaries(st.text(max_size=4) | st.sampled_from(["city", "a", "tags"]), JSON, max_size=4))
def test_any_json_is_a_filter_or_a_400_and_a_filter_answers_yes_or_no(
    written: object, metadata: dict[str, object]
) -> None:
    try:
        where = parse_filter(written)
    except InvalidRequest as error:
        assert error.code == "invalid_filter"
        json.dumps(error.message).encode()
        return
    fact = Fact("f1", FACT.owner, 1, "x", None, None, None, metadata, 0.0)
    assert where.matches(fact) in (True, False)
    assert NoneOf(where).matches(fact) is not where.matches(fact)
