"""How a moment is typed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from inferscale_server.cli.moment import expiry, moment

CET = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2025-01-02", datetime(2025, 1, 2, tzinfo=UTC)),
        ("20250102", datetime(2025, 1, 2, tzinfo=UTC)),
        ("2025-01-02T13:56:00", datetime(2025, 1, 2, 13, 56, tzinfo=UTC)),
        ("2025-01-02 13:56+01:00", datetime(2025, 1, 2, 13, 56, tzinfo=CET)),
        ("1735826160", datetime(2025, 1, 2, 13, 56, tzinfo=UTC)),
        ("1735826160.5", datetime(2025, 1, 2, 13, 56, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_iso_and_unix_seconds_are_read_and_a_zone_is_kept(written: str, meant: datetime) -> None:
    assert moment(written) == meant
    assert moment(written).utcoffset() == meant.utcoffset()


@pytest.mark.parametrize("written", ["yesterday", "", "12", "2025-13-01", "99999999999999999999", "1e9", "-"])
def test_anything_else_is_told_what_is_accepted(written: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"ISO 8601.*Unix seconds"):
        moment(written)


def test_never_is_no_moment() -> None:
    assert expiry("never") is None
    assert expiry("2025-01-02") == datetime(2025, 1, 2, tzinfo=UTC)
