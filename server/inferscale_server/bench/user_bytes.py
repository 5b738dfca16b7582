"""What one user's memory really takes on a server, beside what its tokens compute to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PER_TOKEN = {"device": "bytes_per_row", "host": "cold_bytes_per_row", "disk": "cold_bytes_per_row"}
"""Which field of a status' slab says what a token's keys and values take in each tier."""


@dataclass(frozen=True, slots=True)
class TierBytes:
    """Bytes in one tier. `computed` is for all of the user's tokens; None where it is not a matter of tokens."""

    tier: str
    measured: int
    computed: int | None


def tier_bytes(held: Mapping[str, int], tokens: int, slab: Mapping[str, object]) -> list[TierBytes]:
    """`held` and `tokens` as the user's footprint tells them, `slab` as the server's status does."""
    return [TierBytes(tier, measured, _computed(tier, tokens, slab)) for tier, measured in held.items()]


def _computed(tier: str, tokens: int, slab: Mapping[str, object]) -> int | None:
    per_token = slab.get(PER_TOKEN.get(tier, ""))
    return tokens * per_token if isinstance(per_token, int) else None
