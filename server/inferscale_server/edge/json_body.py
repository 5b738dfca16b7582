"""Bytes of a request to a JSON object, more strictly than the `json` module.

Knows: what JSON may look like here. Refuses to know: fields. What passes can be encoded again as UTF-8, has one meaning
for every parser (no repeated keys, no NaN, no numbers beyond 64 bits), and is shallow and small enough for other code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable

from inferscale_server.edge.answers import clip
from inferscale_server.errors import InvalidRequest, TooLarge
from inferscale_server.limits import MAX_JSON_DEPTH, MAX_JSON_VALUES

JsonObject = dict[str, object]

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_INTEGER_CHARS = 20


def parse_object(body: bytes) -> JsonObject:
    """The JSON object in `body`.

    Raises InvalidRequest (code `invalid_json`) for anything else: bad UTF-8 or JSON, repeated keys, NaN and infinities,
    integers beyond 64 bits, lone surrogates, more than MAX_JSON_DEPTH levels, another type at the top. Raises TooLarge
    (code `too_many_values`) for more than MAX_JSON_VALUES values.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8 (byte {error.start})") from error
    _check_number_of_values(text)
    parsed = _loads(text)
    if not isinstance(parsed, dict):
        raise _invalid("the body is not a JSON object")
    _check_depth(parsed)
    if _SURROGATE_ESCAPE.search(text):
        _check_encodable(parsed)
    return parsed


def _check_number_of_values(text: str) -> None:
    """Before anything is built; exact only when the whole text, strings included, has suspiciously many marks."""
    if _marks(text) <= MAX_JSON_VALUES:
        return
    without_escapes = text.replace(r"\\", "").replace(r"\"", "")
    outside_strings = "".join(without_escapes.split('"')[::2])
    if _marks(outside_strings) > MAX_JSON_VALUES:
        raise TooLarge(f"the body has more than {MAX_JSON_VALUES} values", code="too_many_values")


def _marks(text: str) -> int:
    """Every value but the first follows one of these."""
    return text.count(",") + text.count("[") + text.count("{")


def _loads(text: str) -> object:
    try:
        return json.loads(
            text,
            object_pairs_hook=_object_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error.msg} (character {error.pos})") from error
    except RecursionError as error:
        raise _too_deep() from error


def _object_without_repeats(pairs: list[tuple[str, object]]) -> JsonObject:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise _invalid(f"the key {clip(_first_repeat(pairs))!r} stands twice in one object")
    return unique


def _first_repeat(pairs: list[tuple[str, object]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError(f"no repeat among {len(pairs)} keys")


def _refuse_constant(name: str) -> object:
    raise _invalid(f"{name} is not JSON")


def _finite(literal: str) -> float:
    number = float(literal)
    if not math.isfinite(number):
        raise _invalid(f"the number {clip(literal)} is too large")
    return number


def _integer(literal: str) -> int:
    # Length first: converting a million digits takes quadratic time.
    if len(literal) <= _MAX_INTEGER_CHARS:
        number = int(literal)
        if -(2**63) <= number < 2**64:
            return number
    raise _invalid(f"the number {clip(literal)} does not fit 64 bits")


def _check_depth(parsed: JsonObject) -> None:
    level: list[object] = [parsed]
    for _ in range(MAX_JSON_DEPTH):
        level = [child for node in level for child in _containers(node)]
        if not level:
            return
    raise _too_deep()


def _containers(node: object) -> Iterable[object]:
    children = node.values() if isinstance(node, dict) else node
    assert isinstance(children, Iterable)
    return [child for child in children if isinstance(child, (dict, list))]


def _check_encodable(parsed: JsonObject) -> None:
    try:
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise _invalid("a string holds half of a surrogate pair") from error


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_json")


def _too_deep() -> InvalidRequest:
    return _invalid(f"the body is nested deeper than {MAX_JSON_DEPTH} levels")
