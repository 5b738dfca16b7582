"""Whether a failed try is repeated, and after how long. Pure: clock and dice are arguments."""

from __future__ import annotations

import math
from email.utils import parsedate_to_datetime

from inferscale_sdk._errors import APIConnectionError, APIError, APIStatusError

FIRST_DELAY_S = 0.5
MAX_DELAY_S = 8.0
MAX_RETRY_AFTER_S = 60.0
"""A server that asks for more is obeyed by not trying again."""
JITTER = 0.25
"""A delay is shortened by up to this share, so that clients that failed together do not return together."""

RETRIED_STATUSES = frozenset({408, 409, 429})
LASTING_CONFLICTS = frozenset(
    {"duplicate_fact", "facts_exist", "file_exists", "idempotency_mismatch", "memories_deleted"}
)
"""Codes of a 409 that stays the same however often it is asked. Any other may pass, as while upkeep runs."""
STORAGE_FULL = 507
"""Trying again does not free a disk."""


def retry_delay_s(error: APIError, tries: int, max_retries: int, now_s: float, dice: float) -> float | None:
    """Seconds to wait before the next try, or None to give up.

    `tries` counts the failed tries before this one, `now_s` is Unix time, `dice` a random number from 0 to 1.
    """
    if tries >= max_retries or not is_retryable(error):
        return None
    asked_s = retry_after_s(error.headers.get("retry-after"), now_s) if isinstance(error, APIStatusError) else None
    if asked_s is None:
        return backoff_s(tries, dice)
    return asked_s if asked_s <= MAX_RETRY_AFTER_S else None


def is_retryable(error: APIError) -> bool:
    """True for broken connections, 408, 409 unless its code says that it lasts, 429 and 5xx except 507."""
    if isinstance(error, APIStatusError):
        if error.code in LASTING_CONFLICTS:
            return False
        status = error.status_code
        return status in RETRIED_STATUSES or (status >= 500 and status != STORAGE_FULL)
    return isinstance(error, APIConnectionError)


def backoff_s(tries: int, dice: float) -> float:
    """0.5 s, doubled with each try up to 8 s, less up to a quarter."""
    return float(min(FIRST_DELAY_S * 2 ** min(tries, 10), MAX_DELAY_S) * (1 - JITTER * dice))


def retry_after_s(header: str | None, now_s: float) -> float | None:
    """Seconds that a `Retry-After` header asks for: a number of seconds or an HTTP date; None if it says neither."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = _seconds_until(header, now_s)
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _seconds_until(date: str, now_s: float) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - now_s
    except (ValueError, OverflowError):
        return math.nan
