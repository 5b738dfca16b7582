"""A model behind an OpenAI-compatible endpoint, asked for guided JSON.

Knows: POST /chat/completions with `response_format`. Refuses to know: what is asked. Nothing here repeats the key or a
text in an error.
"""

from __future__ import annotations

import httpx

from inferscale_server.embed_endpoint import Endpoint
from inferscale_server.errors import Unavailable
from inferscale_server.extraction.prompt import Prompt

TIMEOUT_S = 60.0


class EndpointWriter:
    """See Writer. The caller tries again; here one question is one request."""

    def __init__(self, endpoint: Endpoint, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {} if endpoint.key is None else {"authorization": f"Bearer {endpoint.key}"}
        self._model = endpoint.model
        self._http = httpx.AsyncClient(base_url=endpoint.url, headers=headers, timeout=TIMEOUT_S, transport=transport)

    async def __call__(self, prompt: Prompt) -> str:
        """See Writer."""
        response = await self._post(prompt)
        if response.status_code != 200:
            raise Unavailable(f"the extractor endpoint answered with status {response.status_code}")
        try:
            text = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Unavailable("the extractor endpoint did not answer with a chat completion") from error
        return text if isinstance(text, str) else ""

    async def _post(self, prompt: Prompt) -> httpx.Response:
        schema = {"name": "answer", "strict": True, "schema": prompt.schema}
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}],
            "response_format": {"type": "json_schema", "json_schema": schema},
            "max_tokens": prompt.max_tokens,
            "temperature": prompt.temperature,
        }
        try:
            return await self._http.post("chat/completions", json=body)
        except httpx.HTTPError as error:  # also an answer that cannot be decoded, and one redirect too many
            raise Unavailable(f"the extractor endpoint did not answer: {type(error).__name__}") from error

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
