"""Moments as clients write them lie in the calendar that they are shown in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferscale_server.edge.shown import show_time
from inferscale_server.errors import InvalidRequest
from inferscale_server.moments import EARLIEST, LATEST, in_calendar, parse_timestamp
from tests.edge.asgi import FEW

ZONES = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
EDGES = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9999-12-31T23:59:59.999999")


@pytest.mark.parametrize("written", EDGES)
def test_a_moment_that_its_zone_leads_beyond_the_calendar_is_refused(written: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_timestamp(written, "timestamp")
    assert (caught.value.param, caught.value.status) == ("timestamp", 400)


@FEW
@given(st.datetimes(timezones=ZONES) | st.sampled_from(EDGES).map(datetime.fromisoformat))
def test_what_is_taken_can_be_shown_and_means_the_same(moment: datetime) -> None:
    written = moment.isoformat()
    try:
        seconds = parse_timestamp(written, "timestamp")
    except InvalidRequest:
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        assert not EARLIEST <= (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() <= LATEST
        return
    assert seconds is not None
    again = parse_timestamp(show_time(seconds), "timestamp")
    assert again is not None and abs(again - seconds) < 1e-3


@FEW
@given(st.floats(allow_nan=False) | st.integers() | st.text(max_size=30))
def test_anything_else_is_taken_or_refused_but_never_breaks(written: object) -> None:
    try:
        seconds = parse_timestamp(written, "timestamp")
    except InvalidRequest:
        return
    assert seconds is not None and EARLIEST <= seconds <= LATEST and show_time(seconds)


@FEW
@given(st.floats(allow_nan=False))
def test_what_lies_in_a_store_can_be_shown_whatever_it_is(seconds: float) -> None:
    assert show_time(seconds).endswith("Z")
    assert 1 <= in_calendar(seconds).year <= 9999


def test_the_ends_of_the_calendar_are_in_it() -> None:
    assert show_time(EARLIEST) == "0001-01-01T00:00:00Z" and show_time(LATEST) == "9999-12-31T23:59:59Z"
    assert parse_timestamp("0001-01-01", "timestamp") == EARLIEST
