"""One way to encode and place memory: what `inferscale serve` is told, a recipe's name first. Pure."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from inferscale_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variant:
    """`name` is what the user wrote, such as `primer --tail-tokens 64`; `options` is what `serve` takes."""

    name: str
    options: tuple[str, ...]


def parse_variant(written: str) -> Variant:
    """Raises ConfigError."""
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise ConfigError(f"option 'recipe': {written!r}: {error}") from error
    if not words or words[0].startswith("-"):
        raise ConfigError(f"option 'recipe': {written!r} does not begin with a recipe")
    return Variant(" ".join(words), ("--recipe", *words))
