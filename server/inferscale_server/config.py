"""One frozen configuration, built at the edge and validated once.

A command-line flag wins over the environment (`INFERSCALE_*`), which wins over the config file, which wins over the
default. The only place that reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from inferscale_server.errors import ConfigError
from inferscale_server.limits import MAX_K

ENV_PREFIX = "INFERSCALE_"
CLIENT_ENV = frozenset({"BASE_URL", "API_KEY", "LOG"})
"""`INFERSCALE_*` variables that belong to the SDK."""

SQLITE = "sqlite:///"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class ServerConfig(BaseModel):
    """What `inferscale serve` was told. Sizes in GiB, counts in tokens or facts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    data_dir: Path = Path("~/.local/share/inferscale")
    cache_dir: Path = Path("~/.cache/inferscale")
    embedder: str = "minilm"
    index: Literal["auto", "exact"] = "auto"
    recipe: Literal["primer", "isolated"] = "primer"
    primer_facts: int = Field(default=20, ge=1, le=200)
    tail_tokens: int = Field(default=0, ge=0, le=4096)
    k: int = Field(default=20, ge=1, le=MAX_K)
    kv_device_gib: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    facts_url: str | None = None
    insecure: bool = False

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if value == "":
            raise ValueError("it is empty")  # an empty path would be the current folder, an empty host all addresses
        return value

    @field_validator("port", "primer_facts", "tail_tokens", "k", "kv_device_gib", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("it must be a number")
        return value

    @model_validator(mode="after")
    def _public_needs_consent(self) -> ServerConfig:
        if self.host not in LOOPBACK and not self.insecure:
            raise ValueError(
                f"host {self.host!r} is reachable from other machines and no API keys are set: "
                "use a loopback address, or pass --insecure to serve everybody"
            )
        return self

    @field_validator("facts_url")
    @classmethod
    def _sqlite_with_a_path(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(SQLITE):
            raise ValueError("only sqlite:/// is supported in this version")
        if url == SQLITE:
            raise ValueError("no path after sqlite:///")
        return url

    @property
    def data_path(self) -> Path:
        """The data folder with `~` expanded."""
        return self.data_dir.expanduser()

    @property
    def cache_path(self) -> Path:
        """The folder for prepared models, with `~` expanded."""
        return self.cache_dir.expanduser()

    @property
    def facts_path(self) -> Path:
        """The SQLite file that holds the facts."""
        if self.facts_url is not None:
            return Path(self.facts_url.removeprefix(SQLITE)).expanduser()
        return self.data_path / "facts.sqlite3"


def load_config(
    flags: Mapping[str, object],
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> ServerConfig:
    """Merge flags (None = not given), environment and TOML file into a ServerConfig.

    Raises ConfigError that names key and value.
    """
    environ = os.environ if environ is None else environ
    merged: dict[str, object] = {}
    if file is None and environ.get(ENV_PREFIX + "CONFIG"):
        file = Path(environ[ENV_PREFIX + "CONFIG"])
    if file is not None:
        merged |= _from_file(file)
    merged |= _from_environ(environ)
    merged |= {key: value for key, value in flags.items() if value is not None}
    try:
        return ServerConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from error


def _from_file(file: Path) -> dict[str, object]:
    try:
        read: dict[str, object] = tomllib.loads(file.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {file}: {error}") from error
    unknown = [key for key in read if key not in ServerConfig.model_fields]
    if unknown:
        raise ConfigError(f"config file {file}: unknown key {unknown[0]!r} (value {read[unknown[0]]!r})")
    return read


def _from_environ(environ: Mapping[str, str]) -> dict[str, object]:
    read: dict[str, object] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX):
            continue
        key = name.removeprefix(ENV_PREFIX)
        if key in CLIENT_ENV or key == "CONFIG":
            continue
        if key.lower() not in ServerConfig.model_fields:
            raise ConfigError(f"environment variable {name}={value!r}: unknown option")
        read[key.lower()] = value
    return read


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    if not key:
        return reason
    if first["type"] == "extra_forbidden":
        return f"unknown option {key!r} (value {first['input']!r})"
    return f"option {key!r}: value {first['input']!r} is not valid: {reason}"
