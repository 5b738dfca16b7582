"""One way to encode and place memory: what `inferscale serve` is told, a recipe's name first. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from inferscale_server.config import ServerConfig, load_config
from inferscale_server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variant:
    """`name` is what the user wrote, such as `primer --tail-tokens 64`; `options` is what `serve` takes."""

    name: str
    options: tuple[str, ...]


def parse_variant(written: str) -> Variant:
    """Raises ConfigError, also for what `serve` would refuse: its server may start when hours have been measured."""
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise ConfigError(f"option 'recipe': {written!r}: {error}") from error
    if not words or words[0].startswith("-"):
        raise ConfigError(f"option 'recipe': {written!r} does not begin with a recipe")
    try:
        load_config({"recipe": words[0], **_flags(words[1:])}, environ={})
    except ConfigError as error:
        raise ConfigError(f"option 'recipe': {written!r}: {error}") from error
    return Variant(" ".join(words), ("--recipe", *words))


def _flags(words: Sequence[str]) -> dict[str, object]:
    """Values by the options' names in the configuration, as `serve` reads them."""
    flags: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        flag, has_value, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        field = ServerConfig.model_fields.get(name)
        if field is None or not flag.startswith("--"):
            raise ConfigError(f"serve has no option {word!r}")
        given = value if has_value else field.annotation is bool or next(rest, None)
        if given is None:
            raise ConfigError(f"{flag} needs a value")
        flags[name] = given
    return flags
