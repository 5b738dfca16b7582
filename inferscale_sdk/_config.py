"""One frozen configuration of a client, built and validated at the edge. The only place that reads the environment.

An argument wins over the environment (`INFERSCALE_BASE_URL`, `INFERSCALE_API_KEY`, `INFERSCALE_LOG`), which wins over
the default.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from inferscale_sdk._version import __version__

if TYPE_CHECKING:
    from inferscale_sdk._transport import Timeout

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
DEFAULT_MAX_RETRIES = 2
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What a client was told. `timeout` is seconds for one try; None: each route's own default."""

    base_url: str = DEFAULT_BASE_URL
    api_key: str | None = field(default=None, repr=False)
    timeout: float | Timeout | None = None
    max_retries: int = DEFAULT_MAX_RETRIES
    default_headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _check_url(self.base_url)
        _check_key(self.api_key)
        _check_retries(self.max_retries)
        check_timeout(self.timeout)

    def headers(self) -> dict[str, str]:
        """Headers of every request, names in lower case; `default_headers` win."""
        mine = {"user-agent": f"inferscale-sdk-python/{__version__}", "accept": "application/json"}
        if self.api_key is not None:
            mine["authorization"] = f"Bearer {self.api_key}"
        return mine | {name.lower(): value for name, value in self.default_headers.items()}


def load_config(
    *,
    base_url: str | None,
    api_key: str | None,
    timeout: float | Timeout | None,
    max_retries: int,
    default_headers: Mapping[str, str] | None,
    environ: Mapping[str, str] | None = None,
) -> ClientConfig:
    """Merge arguments (None = not given) with the environment; also sets the log level that INFERSCALE_LOG asks for.

    Raises ValueError, TypeError that name option and value (never the key itself).
    """
    environ = os.environ if environ is None else environ
    set_log_level(environ.get("INFERSCALE_LOG"))
    return ClientConfig(
        base_url=_trim_url(base_url or environ.get("INFERSCALE_BASE_URL") or DEFAULT_BASE_URL),
        api_key=api_key or environ.get("INFERSCALE_API_KEY") or None,
        timeout=timeout,
        max_retries=max_retries,
        default_headers=dict(default_headers or {}),
    )


def set_log_level(level: str | None) -> None:
    """Send this SDK's log (never the root's) to stderr at `level`; None or "" leaves logging alone."""
    if not level:
        return
    if level.lower() not in LOG_LEVELS:
        raise ValueError(f"INFERSCALE_LOG={level!r}: must be one of {', '.join(LOG_LEVELS)}")
    logger = logging.getLogger("inferscale_sdk")
    logger.setLevel(level.upper())
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)


def check_timeout(timeout: float | Timeout | None) -> None:
    """Raises ValueError for 0 seconds and less, TypeError for what is no number, no httpx.Timeout and not None."""
    if timeout is None or hasattr(timeout, "connect"):  # httpx is not imported here
        return
    if not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r}: must be a number of seconds or an httpx.Timeout")
    if not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: must be more than 0 seconds")


def _trim_url(url: str) -> str:
    # Every other OpenAI-compatible client wants the /v1, so it gets pasted here too.
    return url.rstrip("/").removesuffix("/v1")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("base_url: must not carry credentials; use api_key or default_headers")
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or not _has_port(url)
    ):
        raise ValueError(f"base_url={url!r}: must look like http://host:port")


def _has_port(url: str) -> bool:
    """Whether the port is one, or left out."""
    try:
        return urlsplit(url).port != 0
    except ValueError:  # no number, or above 65535
        return False


def _check_key(key: str | None) -> None:
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError("api_key: must be printable ASCII without blanks")


def _check_retries(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"max_retries={count!r}: must be a whole number, 0 or more")
