"""What a file of figures says of a run: all that the run holds, and all that it computes of that. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass


def figures_of(found: object) -> object:
    """The same in JSON's types: a dataclass is an object of its fields and its properties.

    A property that is a dataclass says in other words what the fields say, and is left out. JSON has no such thing as
    not a number, nor an infinite one: null.
    """
    match found:
        case float() if not math.isfinite(found):
            return None
        case Mapping():
            return {str(key): figures_of(value) for key, value in found.items()}
        case list() | tuple():
            return [figures_of(value) for value in found]
    if is_dataclass(found) and not isinstance(found, type):
        held = {field.name: figures_of(getattr(found, field.name)) for field in fields(found)}
        return held | {name: figures_of(value) for name, value in _computed(found) if not is_dataclass(value)}
    return found


def _computed(found: object) -> list[tuple[str, object]]:
    names = [name for name, member in vars(type(found)).items() if isinstance(member, property)]
    return [(name, getattr(found, name)) for name in names]
