"""The SDK's two clients behind one LlamaIndex object: one for threads, one for each event loop.

Knows: which client a call may use. Refuses to know: what is asked. Holds the API key, so it is never serialised.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn
from weakref import WeakKeyDictionary

from inferscale_sdk import AsyncInferScaleClient, InferScaleClient


class Clients:
    """Clients of one server, made from connection options or given. No network before the first call.

    An AsyncInferScaleClient belongs to one event loop, while scripts call `asyncio.run` again and again: so each loop
    gets its own. Given clients are used as they are and stay the caller's to close.
    Raises ValueError for an option that cannot work, or for options beside given clients.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int = 2,
        client: InferScaleClient | None = None,
        async_client: AsyncInferScaleClient | None = None,
    ) -> None:
        self.given = client is not None or async_client is not None
        if self.given and any(option is not None for option in (base_url, api_key, timeout)):
            raise ValueError("give either a client or base_url, api_key and timeout, not both")
        self._base_url, self._api_key, self._timeout, self._max_retries = base_url, api_key, timeout, max_retries
        self._async_client = async_client
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncInferScaleClient] = WeakKeyDictionary()
        self._client = client if self.given else self._own()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(given={self.given})"

    def __deepcopy__(self, memo: object) -> Clients:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("clients hold a key: they are not pickled")

    @property
    def sync(self) -> InferScaleClient:
        """For calls from a thread. Raises TypeError when only an async client was given."""
        if self._client is None:
            raise TypeError("a sync call needs client=InferScaleClient(...): only async_client was given")
        return self._client

    @property
    def native(self) -> bool:
        """Whether there is a client for event loops."""
        return not self.given or self._async_client is not None

    def in_loop(self) -> AsyncInferScaleClient:
        """For calls from the running event loop. Raises TypeError when only a sync client was given."""
        if self._async_client is not None:
            return self._async_client
        if self.given:
            raise TypeError("an async call needs async_client=AsyncInferScaleClient(...): only client was given")
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = self._own_async()
        return self._by_loop[loop]

    def _own(self) -> InferScaleClient:
        return InferScaleClient(
            base_url=self._base_url, api_key=self._api_key, timeout=self._timeout, max_retries=self._max_retries
        )

    def _own_async(self) -> AsyncInferScaleClient:
        return AsyncInferScaleClient(
            base_url=self._base_url, api_key=self._api_key, timeout=self._timeout, max_retries=self._max_retries
        )
