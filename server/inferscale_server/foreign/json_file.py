"""A file of JSON: one value, or one value a line.

Knows: where each value stood. Refuses to know: what the values mean. Another system's file may be large, but it fits
into memory: its owner made it with one call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.foreign.record import Fault, Unreadable


@dataclass(frozen=True, slots=True)
class Numbered:
    """A JSON value and its line or position, from 1."""

    number: int
    value: object


def load_text(path: Path) -> str:
    """The file's text. Raises Unreadable."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path}: not UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from error


def load_value(path: Path) -> object:
    """The one JSON value in the file; of several lines that are one each, the list of them. Raises Unreadable."""
    text = load_text(path)
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        lines = list(lines_in(text))
        if len(lines) > 1 and not isinstance(lines[0], Fault):
            return _all_of(path, lines)
        raise Unreadable(f"{path}: line {error.lineno}: not JSON: {error.msg}") from error


def lines_in(text: str) -> Iterator[Numbered | Fault]:
    """The value on each line that is not empty."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield Numbered(number, _loads(line))
        except json.JSONDecodeError as error:
            yield Fault(number, f"not JSON: {error.msg} (character {error.pos})")


def listed(path: Path, value: object, *keys: str) -> Sequence[object]:
    """`value` itself if it is a list, else what stands under the first of `keys`. Raises Unreadable."""
    if isinstance(value, list):
        return value
    if isinstance(value, Mapping):
        for key in keys:
            under = value.get(key)
            if isinstance(under, list):
                return under
    raise Unreadable(f"{path}: neither a list nor an object with a list under {' or '.join(keys)}")


def numbered(values: Sequence[object]) -> Iterator[Numbered]:
    """Values with their positions, from 1."""
    return (Numbered(number, value) for number, value in enumerate(values, 1))


def _all_of(path: Path, lines: Sequence[Numbered | Fault]) -> list[object]:
    for line in lines:
        if isinstance(line, Fault):
            raise Unreadable(f"{path}: line {line.number}: {line.reason}")
    return [line.value for line in lines if isinstance(line, Numbered)]


def _loads(text: str) -> object:
    try:
        parsed: object = json.loads(text)
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deep", text, 0) from error
    return parsed
