"""Filters over facts: parsed once, checked whole, evaluated on each candidate.

Knows: the language of filters and what a fact's fields are called in it. Refuses to know: where facts lie.

A filter is an object. `{"city": "Oslo"}` or `{"city": {"ne": "Oslo"}}` compares one key; several keys, and several
operators of one key, must all hold. `and` and `or` take lists of filters, `not` takes one. Keys name metadata, with
dots for what is nested, except for the reserved names below. A missing key equals null; it is smaller and larger than
nothing, and so are values of different kinds. Whatever else is written is refused, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from inferscale_server.errors import InvalidRequest
from inferscale_server.limits import MAX_FILTER_CONDITIONS, MAX_FILTER_DEPTH, MAX_FILTER_VALUES
from inferscale_server.moments import parse_timestamp
from inferscale_server.types import Fact, Scope

OPERATORS = frozenset({"eq", "ne", "in", "nin", "gt", "gte", "lt", "lte", "contains"})
TIMES = frozenset({"timestamp", "created_at", "updated_at", "expires_at"})
WORDS = frozenset({"speaker", "session_id", "agent_id", "run_id", "id"})
SHOWN_CHARS = 100

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of one key. `operand` is a tuple for `in` and `nin`."""

    key: str
    operator: str
    operand: Scalar | tuple[Scalar, ...]

    def matches(self, fact: Fact) -> bool:
        """Does the fact's value of this key compare like that?"""
        return _TESTS[self.operator](_value(fact, self.key), self.operand)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part must match."""

    parts: tuple[Filter, ...]

    def matches(self, fact: Fact) -> bool:
        """See Condition."""
        return all(part.matches(fact) for part in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One part must match."""

    parts: tuple[Filter, ...]

    def matches(self, fact: Fact) -> bool:
        """See Condition."""
        return any(part.matches(fact) for part in self.parts)


@dataclass(frozen=True, slots=True)
class NoneOf:
    """The part must not match."""

    part: Filter

    def matches(self, fact: Fact) -> bool:
        """See Condition."""
        return not self.part.matches(fact)


Filter = Condition | AllOf | AnyOf | NoneOf
"""What `parse_filter` returns; has `matches(fact)`."""


def parse_filter(value: object) -> Filter:
    """The filter that a client wrote, as JSON values. Raises InvalidRequest with code "invalid_filter"."""
    return _Parser().parse(value, 1)


def within(where: Filter | None, scope: Scope) -> Filter | None:
    """`where`, and besides only facts of this scope; None when nothing is left out."""
    named = {"agent_id": scope.agent_id, "run_id": scope.run_id}
    parts: list[Filter] = [Condition(key, "eq", value) for key, value in named.items() if value is not None]
    parts += [] if where is None else [where]
    return _all_of(parts) if parts else None


class _Parser:
    """Counts conditions over the whole filter."""

    def __init__(self) -> None:
        self._conditions = 0

    def parse(self, value: object, depth: int) -> Filter:
        if depth > MAX_FILTER_DEPTH:
            raise _invalid(f"the filter is nested more than {MAX_FILTER_DEPTH} deep")
        if not isinstance(value, Mapping) or not value:
            raise _invalid("a filter must be an object that is not empty")
        return _all_of([part for key in value for part in self._parts(key, value[key], depth)])

    def _parts(self, key: object, value: object, depth: int) -> list[Filter]:
        if not isinstance(key, str) or not key:
            raise _invalid("a filter has an empty key")
        if key == "not":
            return [NoneOf(self.parse(value, depth + 1))]
        if key in ("and", "or"):
            parts = self._list(key, value, depth)
            return [AllOf(parts) if key == "and" else AnyOf(parts)]
        if isinstance(value, Mapping):
            return self._compared(key, value)
        return [self._condition(key, "eq", value)]

    def _list(self, key: str, value: object, depth: int) -> tuple[Filter, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise _invalid(f"{key!r} must be a list of filters that is not empty")
        return tuple(self.parse(part, depth + 1) for part in value)

    def _compared(self, key: str, operators: Mapping[object, object]) -> list[Filter]:
        if not operators:
            raise _invalid(f"key {_clip(key)} has an empty object: say an operator")
        for operator in operators:
            if operator not in OPERATORS:
                raise _invalid(f"unknown operator {_clip(operator)} of key {_clip(key)}")
        return [self._condition(key, str(operator), operand) for operator, operand in operators.items()]

    def _condition(self, key: str, operator: str, operand: object) -> Condition:
        self._conditions += 1
        if self._conditions > MAX_FILTER_CONDITIONS:
            raise _invalid(f"the filter has more than {MAX_FILTER_CONDITIONS} conditions")
        if operator not in ("in", "nin"):
            return Condition(key, operator, _scalar(key, operator, operand))
        if not isinstance(operand, list | tuple) or not 1 <= len(operand) <= MAX_FILTER_VALUES:
            raise _invalid(f"{operator!r} of key {_clip(key)} must be a list of 1 to {MAX_FILTER_VALUES} values")
        return Condition(key, operator, tuple(_scalar(key, operator, value) for value in operand))


def _scalar(key: str, operator: str, operand: object) -> Scalar:
    where = f"{operator!r} of key {_clip(key)}"
    if operand is not None and not isinstance(operand, str | int | float):
        raise _invalid(f"{where} must be a string, a number, true, false or null")
    if isinstance(operand, float) and not math.isfinite(operand):
        raise _invalid(f"{where} must be a finite number")
    if operator in ("gt", "gte", "lt", "lte") and (operand is None or isinstance(operand, bool)):
        raise _invalid(f"{where} must be a number or a string")
    if key in TIMES:
        return _moment(operator, operand, where)
    if key in WORDS and not isinstance(operand, str) and (operand is not None or operator == "contains"):
        raise _invalid(f"{where} must be a string")
    return operand


def _moment(operator: str, operand: Scalar, where: str) -> float | None:
    if operator == "contains":
        raise _invalid(f"{where} does not exist for a time")
    try:
        return parse_timestamp(operand, where)
    except InvalidRequest as error:
        raise _invalid(error.message) from error


def _all_of(parts: list[Filter]) -> Filter:
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_filter", param="filter")


def _clip(written: object) -> str:
    shown = repr(written)
    return shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "…"


def _value(fact: Fact, key: str) -> object:
    if key == "timestamp":
        return fact.occurred_at
    if key in TIMES or key in WORDS:
        return getattr(fact, key)
    return _nested(fact.metadata, key)


def _nested(metadata: Mapping[str, object], key: str) -> object:
    """A key that holds dots itself wins over what is nested."""
    if key in metadata:
        return metadata[key]
    first, dot, rest = key.partition(".")
    below = metadata.get(first) if dot else None
    return _nested(below, rest) if isinstance(below, Mapping) else None


def _same(left: object, right: object) -> bool:
    """Equal as JSON values: true is not 1."""
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def _one_of(value: object, operand: object) -> bool:
    return isinstance(operand, tuple) and any(_same(value, one) for one in operand)


def _contains(value: object, operand: object) -> bool:
    if isinstance(value, str):
        return isinstance(operand, str) and operand in value
    return isinstance(value, list | tuple) and any(_same(one, operand) for one in value)


def _ordered(holds: Callable[[int], bool]) -> Callable[[object, object], bool]:
    """A test of two numbers or two strings; `holds` is told -1, 0 or 1 for smaller, equal, larger."""

    def test(left: object, right: object) -> bool:
        if isinstance(left, bool) or isinstance(right, bool):
            return False
        if isinstance(left, str) and isinstance(right, str):
            return holds((left > right) - (left < right))
        if isinstance(left, int | float) and isinstance(right, int | float):
            return holds((left > right) - (left < right))
        return False

    return test


_TESTS: dict[str, Callable[[object, object], bool]] = {
    "eq": _same,
    "ne": lambda left, right: not _same(left, right),
    "in": _one_of,
    "nin": lambda left, right: not _one_of(left, right),
    "gt": _ordered(lambda order: order > 0),
    "gte": _ordered(lambda order: order >= 0),
    "lt": _ordered(lambda order: order < 0),
    "lte": _ordered(lambda order: order <= 0),
    "contains": _contains,
}
