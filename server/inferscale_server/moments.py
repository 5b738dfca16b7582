"""Moments as clients write them.

Knows: Unix seconds and ISO 8601. Refuses to know: what happens at a moment.
"""

from __future__ import annotations

from datetime import UTC, datetime

from inferscale_server.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST, LATEST = -62_135_596_800.0, 253_402_300_799.0
"""Years 1 to 9999, in Unix seconds: refuses, among others, milliseconds taken for seconds."""


def parse_timestamp(value: object, param: str) -> float | None:
    """Unix seconds (UTC) from a number or an ISO 8601 string, without a zone taken as UTC; None stays None.

    A date alone is its first moment. Raises InvalidRequest that names `param`.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return _parse_iso(value, param)
    if isinstance(value, bool) or not isinstance(value, int | float) or not EARLIEST <= value <= LATEST:
        raise InvalidRequest(f"{param} must be Unix seconds or an ISO 8601 string", param=param)
    return float(value)


def _parse_iso(value: str, param: str) -> float:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidRequest(f"{param} must be Unix seconds or an ISO 8601 string", param=param) from error
    zoned = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    seconds = (zoned - _EPOCH).total_seconds()
    if not EARLIEST <= seconds <= LATEST:  # a zone can lead beyond the calendar, in which all moments are shown
        raise InvalidRequest(f"{param} must lie in the years 1 to 9999, in UTC", param=param)
    return seconds


def in_calendar(seconds: float) -> datetime:
    """The moment in UTC; what lies beyond the calendar is its nearest end.

    Only what an older server let in can lie there, and it must not keep its owner from reading and deleting it.
    """
    return datetime.fromtimestamp(min(max(seconds, EARLIEST), LATEST), UTC)
