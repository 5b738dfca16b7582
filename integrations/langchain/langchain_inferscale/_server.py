"""Which server to talk to: the fields that chat model and retriever share, and the clients made from them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from threading import Lock
from typing import Any, Self
from weakref import WeakKeyDictionary

from langchain_core.utils import from_env, secret_from_env
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, model_validator

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient

_UNUSED: Any = object()
"""In place of an HTTP client, where nothing is sent."""


class Clients:
    """A sync client, and an async one per event loop: connections opened in one loop cannot be used in another.

    Made on first use, for each loads certificates. Raises ValueError at once for options that cannot work.
    """

    def __init__(self, options: Mapping[str, Any], http: Any, async_http: Any) -> None:
        InferScaleClient(**options, http_client=_UNUSED)  # Checks them.
        self._options = options
        self._http = http
        self._async_http = async_http
        self._sync: InferScaleClient | None = None
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncInferScaleClient] = WeakKeyDictionary()
        self._lock = Lock()

    def __deepcopy__(self, memo: object) -> Self:
        return self  # Copies of a model share its connections.

    @property
    def sync(self) -> InferScaleClient:
        """The client for sync calls, from any thread."""
        with self._lock:
            if self._sync is None:
                self._sync = InferScaleClient(**self._options, http_client=self._http)
            return self._sync

    def for_loop(self) -> AsyncInferScaleClient:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                self._by_loop[loop] = AsyncInferScaleClient(**self._options, http_client=self._async_http)
            return self._by_loop[loop]


class ServerFields(BaseModel):
    """Where the server is and how to talk to it. No network at construction; bad values are ValueErrors there."""

    base_url: str | None = Field(default_factory=from_env("INFERSCALE_BASE_URL", default=None))
    """Default: INFERSCALE_BASE_URL, else http://127.0.0.1:8000."""
    api_key: SecretStr | None = Field(default_factory=secret_from_env("INFERSCALE_API_KEY", default=None))
    """Default: INFERSCALE_API_KEY, else none. Never serialised."""
    timeout: float | None = None
    """Seconds for one try."""
    max_retries: int = 2
    """Further tries after broken connections, 408, 409, 429 and 5xx."""
    default_headers: dict[str, str] = Field(default_factory=dict, exclude=True, repr=False)
    """Headers of every request. Never serialised."""
    http_client: Any = Field(default=None, exclude=True, repr=False)
    """Your own httpx.Client; it stays yours to close."""
    http_async_client: Any = Field(default=None, exclude=True, repr=False)
    """Your own httpx.AsyncClient for the async methods; it stays yours to close."""

    _clients: Clients = PrivateAttr()

    @model_validator(mode="after")
    def _make_clients(self) -> Self:
        options = {
            "base_url": self.base_url,
            "api_key": None if self.api_key is None else self.api_key.get_secret_value(),
            "timeout": self.timeout,
            "max_retries": self.max_retries,
            "default_headers": self.default_headers,
        }
        self._clients = Clients(options, self.http_client, self.http_async_client)
        return self

    @property
    def client(self) -> InferScaleClient:
        """The SDK's client behind this object."""
        return self._clients.sync

    @property
    def credentials_digest(self) -> str:
        """SHA-256, in hex, of what the server may know a tenant by: the API key and the headers."""
        key = None if self.api_key is None else self.api_key.get_secret_value()
        headers = sorted((name.lower(), value) for name, value in self.default_headers.items())
        return hashlib.sha256(json.dumps([key, headers]).encode()).hexdigest()
