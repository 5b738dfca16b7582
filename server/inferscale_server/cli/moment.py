"""A moment as it is typed on a command line.

Knows: ISO 8601 and Unix seconds, as the API takes them. Refuses to know: what happens at a moment.
"""

from __future__ import annotations

from datetime import UTC, datetime

import typer

ACCEPTED = "ISO 8601, such as 2025-01-02 or 2025-01-02T13:56:00+01:00 (without a zone: UTC), or Unix seconds"
NEVER = "never"


def moment(written: str) -> datetime:
    """The moment, with its time zone. Raises typer.BadParameter that says what is accepted."""
    try:
        read = _read(written.strip())
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{written!r} is no moment: write {ACCEPTED}") from error
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)


def checked_expiry(written: str | None) -> str | None:
    """A moment or `never`, still as it was typed. Raises typer.BadParameter."""
    if written is not None and written != NEVER:
        moment(written)
    return written


def expiry(written: str | None) -> datetime | None:
    """What `checked_expiry` let through; None for `never`, and where nothing was typed."""
    return None if written is None or written == NEVER else moment(written)


def _read(written: str) -> datetime:
    # A year alone or a compact date is made of digits too, but ISO 8601 has eight of them at most.
    if written.lstrip("-").replace(".", "", 1).isdigit() and len(written) > len("20250102"):
        return datetime.fromtimestamp(float(written), UTC)
    return datetime.fromisoformat(written)
