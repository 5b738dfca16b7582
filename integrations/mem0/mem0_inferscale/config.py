"""How mem0 is told of an InferScale server.

Knows: mem0's configuration. Refuses to know: the classes behind it.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mem0_inferscale.scope import DEFAULT_COLLECTION

NO_KEY = "none"
"""mem0's OpenAI clients refuse to start without a key; a server without keys ignores it."""


class InferScaleConfig(BaseModel):
    """Configuration of the vector store `inferscale`. Without an address or a key: the environment's."""

    model_config = ConfigDict(extra="forbid")

    collection_name: str = Field(DEFAULT_COLLECTION, description="The default one is shared with the users' chats")
    embedding_model_dims: int | None = Field(None, description="Numbers in each vector; None: as many as the first has")
    base_url: str | None = Field(None, description="Address of the server, without /v1")
    api_key: str | None = Field(None, description="API key of the server")
    timeout: float | None = Field(None, description="Seconds for one request")


def memory_config(
    base_url: str,
    *,
    model: str,
    embedder: str = "default",
    api_key: str | None = None,
    history_db_path: str | None = None,
    max_tokens: int = 1_000,
) -> dict[str, object]:
    """A configuration for `mem0.Memory.from_config`: store, model and embedder are all this server's.

    `base_url` is its address without /v1, `model` the name that GET /v1/models lists. Registers the store as well.
    """
    from mem0_inferscale.registration import register

    register()
    root = base_url.rstrip("/").removesuffix("/v1")
    key = api_key or NO_KEY
    llm = {"model": model, "vllm_base_url": f"{root}/v1", "api_key": key, "temperature": 0.0, "max_tokens": max_tokens}
    embedding = {"model": embedder, "openai_base_url": f"{root}/v1", "api_key": key}
    whole: dict[str, object] = {
        "vector_store": {"provider": "inferscale", "config": {"base_url": root, "api_key": api_key}},
        "llm": {"provider": "vllm", "config": llm},
        "embedder": {"provider": "openai", "config": embedding},
    }
    return whole if history_db_path is None else {**whole, "history_db_path": history_db_path}
