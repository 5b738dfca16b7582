"""One frozen configuration, built at the edge and validated once.

A command-line flag wins over the environment (`INFERSCALE_*`), which wins over the config file, which wins over the
default. The only place that reads the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from inferscale_server.errors import ConfigError
from inferscale_server.kv_codec import KvCodec
from inferscale_server.limits import (
    MAX_BYTES_PER_OWNER,
    MAX_FACTS_PER_OWNER,
    MAX_K,
    MAX_REQUESTS_PER_USER,
    MAX_TIER_GIB,
)
from inferscale_server.recipe_name import check_recipe
from inferscale_server.types import FactOrder
from inferscale_server.wording import FACT_WRAPPER, MemoryPlace, check_wrapper

ENV_PREFIX = "INFERSCALE_"
CLIENT_ENV = frozenset({"BASE_URL", "API_KEY", "LOG"})
"""`INFERSCALE_*` variables that belong to the SDK."""
OPENAI_KEY = "OPENAI_API_KEY"
"""Taken for `embedder_key` and `extractor_key` when nothing else is given for them."""
OWN_TO_A_SERVER = frozenset({"model", "host", "port", "data_dir", "facts_url", "api_keys", "insecure", "verbose"})
"""What two servers must not share, or are told otherwise."""
EXTRACTORS = ("auto", "llm", "mem0", "verbatim", "off")

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
    embedder_url: str | None = None
    embedder_key: SecretStr | None = None
    extractor: str = "auto"
    extractor_url: str | None = None
    extractor_key: SecretStr | None = None
    extract_from: Literal["user", "both"] = "user"
    contradictions: Literal["auto", "model", "rule"] = "auto"
    index: Literal["auto", "exact", "faiss", "cuvs"] = "auto"
    recipe: str = "primer"
    primer_facts: int = Field(default=20, ge=1, le=200)
    primer_choice: Literal["medoids", "oldest"] = "medoids"
    window: int = Field(default=20, ge=1, le=200)
    neighbours: int = Field(default=5, ge=1, le=200)
    system_prompt: str | None = None
    memory_intro: str | None = None
    memory_place: MemoryPlace = "end"
    fact_wrapper: str = FACT_WRAPPER
    fact_order: FactOrder = "best_last"
    tail_tokens: int | None = Field(default=None, ge=0, le=4096)
    k: int = Field(default=20, ge=1, le=MAX_K)
    kv_device_gib: float = Field(default=1.0, gt=0, le=MAX_TIER_GIB, allow_inf_nan=False)
    kv_host_gib: float = Field(default=0.0, ge=0, le=MAX_TIER_GIB, allow_inf_nan=False)
    kv_disk_gib: float = Field(default=8.0, ge=0, le=MAX_TIER_GIB, allow_inf_nan=False)
    kv_codec: KvCodec = "none"
    kv_codec_device: bool = False
    stage_deadline_ms: float = Field(default=500.0, ge=0, allow_inf_nan=False)
    max_sessions: int = Field(default=4096, ge=1, le=1_000_000)
    session_idle_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    facts_url: str | None = None
    api_keys: Path | None = None
    insecure: bool = False
    max_facts_per_user: int = Field(default=MAX_FACTS_PER_OWNER, ge=1, le=MAX_FACTS_PER_OWNER)
    max_bytes_per_user: int = Field(default=MAX_BYTES_PER_OWNER, ge=1)
    max_requests_per_user: int = Field(default=MAX_REQUESTS_PER_USER, ge=1)
    access_log: bool = False
    verbose: bool = False

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if value == "":
            raise ValueError("it is empty")  # an empty path would be the current folder, an empty host all addresses
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: object, field: ValidationInfo) -> object:
        assert field.field_name is not None
        if isinstance(value, bool) and cls.model_fields[field.field_name].annotation is not bool:
            raise ValueError(f"it must not be {str(value).lower()}")
        return value

    @model_validator(mode="after")
    def _public_needs_consent(self) -> ServerConfig:
        if self.public and self.api_keys is None and not self.insecure:
            raise ValueError(
                f"host {self.host!r} is reachable from other machines and no API keys are set: "
                "use a loopback address, pass --api-keys FILE, or pass --insecure to serve everybody"
            )
        return self

    @field_validator("kv_codec_device")
    @classmethod
    def _device_codes_are_int8(cls, device: bool, info: ValidationInfo) -> bool:
        codec = info.data.get("kv_codec")
        if device and codec != "int8":
            raise ValueError(f"codes on the device are int8, and kv_codec is {codec}")
        return device

    @field_validator("facts_url")
    @classmethod
    def _sqlite_with_a_path(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(SQLITE):
            raise ValueError("only sqlite:/// is supported in this version")
        if url == SQLITE:
            raise ValueError("no path after sqlite:///")
        return url

    @field_validator("extractor")
    @classmethod
    def _known_extractor(cls, name: str) -> str:
        if name not in EXTRACTORS and not name.startswith("openai:"):
            raise ValueError(f"it is none of {', '.join(EXTRACTORS)} and openai:MODEL[@URL]")
        return name

    @field_validator("recipe")
    @classmethod
    def _known_recipe(cls, recipe: str) -> str:
        return check_recipe(recipe)

    @field_validator("fact_wrapper")
    @classmethod
    def _a_place_for_the_fact(cls, wrapper: str) -> str:
        return check_wrapper(wrapper)

    @property
    def public(self) -> bool:
        """Can other machines reach the address that is listened on?"""
        return self.host not in LOOPBACK

    @property
    def keys_path(self) -> Path | None:
        """The file of API keys with `~` expanded; None: no keys."""
        return None if self.api_keys is None else self.api_keys.expanduser()

    @property
    def embedder_secret(self) -> str | None:
        """The key for an embedder endpoint, in the clear."""
        return None if self.embedder_key is None else self.embedder_key.get_secret_value()

    @property
    def extractor_secret(self) -> str | None:
        """The key for an extractor endpoint, in the clear."""
        return None if self.extractor_key is None else self.extractor_key.get_secret_value()

    @property
    def judged_by_model(self) -> bool:
        """Does a model decide what is a duplicate or a contradiction? The embedded one is too small for that."""
        capable = self.model is not None or self.extractor.startswith("openai:")
        return self.contradictions == "model" or (self.contradictions == "auto" and capable)

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

    Raises ConfigError that names key, value, and where they stand.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get(ENV_PREFIX + "CONFIG"):
        file = Path(environ[ENV_PREFIX + "CONFIG"])
    given: dict[str, Given] = {}
    if file is not None:
        given |= _from_file(file)
    if environ.get(OPENAI_KEY):
        for key in ("embedder_key", "extractor_key"):
            given.setdefault(key, Given(environ[OPENAI_KEY], f"environment variable {OPENAI_KEY}"))
    given |= _from_environ(environ)
    given |= {key: Given(value, _flag(key)) for key, value in flags.items() if value is not None}
    try:
        return ServerConfig.model_validate({key: one.value for key, one in given.items()})
    except ValidationError as error:
        raise ConfigError(_one_line(error, given)) from error


def environ_without_ours(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a server that is started beside the operator's own: without its settings, which may name its
    database, but for the folder of prepared models."""
    environ = os.environ if environ is None else environ
    kept = ENV_PREFIX + "CACHE_DIR"
    return {name: value for name, value in environ.items() if not name.startswith(ENV_PREFIX) or name == kept}


def environ_of(config: ServerConfig) -> dict[str, str]:
    """What a server with a data folder, an address and a model of its own must be told to be configured like this one:
    `INFERSCALE_*` variables, in which keys are not seen by others as they would be on a command line."""
    given = {name: getattr(config, name) for name in config.model_fields_set - OWN_TO_A_SERVER}
    return {ENV_PREFIX + name.upper(): _written(value) for name, value in given.items() if value is not None}


def _written(value: object) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class Given:
    """One option's value, and where it was read: a flag, an environment variable, or a key of a file."""

    value: object
    source: str


def _flag(key: str) -> str:
    return "MODEL" if key == "model" else "--" + key.replace("_", "-")


def _from_file(file: Path) -> dict[str, Given]:
    try:
        read: dict[str, object] = tomllib.loads(file.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"config file {file}: {error}") from error
    unknown = [key for key in read if key not in ServerConfig.model_fields]
    if unknown:
        raise ConfigError(f"config file {file}: unknown key {unknown[0]!r} (value {read[unknown[0]]!r})")
    return {key: Given(value, f"config file {file}, key {key!r}") for key, value in read.items()}


def _from_environ(environ: Mapping[str, str]) -> dict[str, Given]:
    read: dict[str, Given] = {}
    for name, value in environ.items():
        if not name.startswith(ENV_PREFIX):
            continue
        key = name.removeprefix(ENV_PREFIX)
        if key in CLIENT_ENV or key == "CONFIG":
            continue
        if key.lower() not in ServerConfig.model_fields:
            shown = "…" if "KEY" in name else repr(value)  # a misspelt name must not print a secret
            raise ConfigError(f"environment variable {name}={shown}: unknown option")
        read[key.lower()] = Given(value, f"environment variable {name}")
    return read


def _one_line(error: ValidationError, given: Mapping[str, Given]) -> str:
    first = error.errors(include_url=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # about several options at once; the host is the one that somebody set
        return f"{given['host'].source}: {reason}" if "host" in given else reason
    key = str(first["loc"][0])
    source = given[key].source if key in given else "default"
    if first["type"] == "extra_forbidden":
        return f"{source}: unknown option {key!r} (value {first['input']!r})"
    return f"{source}: option {key!r}: value {first['input']!r} is not valid: {reason}"
