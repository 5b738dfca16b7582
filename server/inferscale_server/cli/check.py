"""One line of `inferscale doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `found` says what there is; `reason` is None when that will do."""

    name: str
    found: str
    reason: str | None = None
