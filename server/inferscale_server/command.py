"""What the API process tells the engine about one request: which slab rows to inject, which to capture.

Travels as `kv_transfer_params["inferscale"]` inside the request, signed with a per-process secret, so that a client who
finds a door to those params still cannot name rows. Imported by both sides; knows no vLLM, no torch.
"""

from __future__ import annotations

import hmac
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any

PARAMS_KEY = "inferscale"
FAULTS_KEY = "inferscale_faults"
"""Where a finished request reports the scheduler half's fault counts, by hook."""

SPARE_TOKENS = 2
"""Throw-away tokens behind every captured range: a lone last token can run as a decode graph and never be seen."""


@dataclass(frozen=True, slots=True)
class Extent:
    """`length` consecutive slab rows from `row` on; one row holds one token's keys and values of all layers."""

    row: int
    length: int


@dataclass(frozen=True, slots=True)
class Injection:
    """Prompt positions 0 … len(token_ids)-1 come from these rows, as far as the prompt really holds these tokens."""

    token_ids: tuple[int, ...]
    extents: tuple[Extent, ...]

    def __post_init__(self) -> None:
        rows = sum(extent.length for extent in self.extents)
        assert rows == len(self.token_ids), f"{rows} rows for {len(self.token_ids)} tokens"


@dataclass(frozen=True, slots=True)
class Capture:
    """Keys and values of prompt positions start … start+rows-1 go to these rows, position-free.

    `stamp` (> 0, below 2**31) is new for every attempt: rows that bear it were written by this attempt and no other.
    """

    stamp: int
    start: int
    extents: tuple[Extent, ...]

    @property
    def length(self) -> int:
        """Tokens captured."""
        return sum(extent.length for extent in self.extents)


@dataclass(frozen=True, slots=True)
class Command:
    """Injection and captures of one request; either may be absent. Captures stand in prompt order."""

    injection: Injection | None = None
    captures: tuple[Capture, ...] = ()


def rows_of(extents: Sequence[Extent]) -> list[int]:
    """Slab rows in token order."""
    return list(chain.from_iterable(range(extent.row, extent.row + extent.length) for extent in extents))


def to_params(command: Command, secret: bytes) -> dict[str, Any]:
    """The signed `kv_transfer_params` of a request."""
    body: dict[str, Any] = {"tokens": [], "rows": [], "captures": []}
    if command.injection is not None:
        body["tokens"] = list(command.injection.token_ids)
        body["rows"] = _flat(command.injection.extents)
    body["captures"] = [[capture.stamp, capture.start, _flat(capture.extents)] for capture in command.captures]
    return {PARAMS_KEY: body | {"mac": _mac(body, secret)}}


def from_params(params: Mapping[str, Any] | None, secret: bytes, slab_rows: int) -> Command | None:
    """The command inside `kv_transfer_params`, or None where there is none, it is unsigned or names rows out of range.

    Never raises on foreign input: whatever does not check out is no command.
    """
    body = params.get(PARAMS_KEY) if isinstance(params, Mapping) else None
    if not isinstance(body, Mapping):
        return None
    try:
        if not hmac.compare_digest(str(body["mac"]), _mac(body, secret)):
            return None
        command = _parse(body)
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError):
        return None
    return command if _within(command, slab_rows) else None


def _parse(body: Mapping[str, Any]) -> Command:
    injection = None
    if body["tokens"]:
        injection = Injection(tuple(body["tokens"]), _extents(body["rows"]))
    captures = (Capture(stamp, start, _extents(rows)) for stamp, start, rows in body["captures"])
    return Command(injection, tuple(captures))


def _within(command: Command, slab_rows: int) -> bool:
    injected = () if command.injection is None else command.injection.extents
    extents = chain(injected, *(capture.extents for capture in command.captures))
    return all(e.row >= 0 and e.length > 0 and e.row + e.length <= slab_rows for e in extents)


def _flat(extents: Sequence[Extent]) -> list[int]:
    return [number for extent in extents for number in (extent.row, extent.length)]


def _extents(flat: Sequence[int]) -> tuple[Extent, ...]:
    return tuple(Extent(row, length) for row, length in zip(flat[::2], flat[1::2], strict=True))


def _mac(body: Mapping[str, Any], secret: bytes) -> str:
    captures = ([stamp, start, *rows] for stamp, start, rows in body["captures"])
    mac = hmac.new(secret, digestmod=sha256)
    for numbers in (body["tokens"], body["rows"], *captures):
        raw = array("q", numbers).tobytes()
        mac.update(len(raw).to_bytes(8, "big"))
        mac.update(raw)
    return mac.hexdigest()
