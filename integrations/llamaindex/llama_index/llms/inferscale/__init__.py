"""InferScale as a LlamaIndex LLM: chats that remember their user, over the SDK."""

try:
    from llama_index.llms.inferscale.base import InferScaleLLM
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("llama_index.core"):
        raise
    raise ModuleNotFoundError(
        "llama_index.llms.inferscale needs llama-index-core: pip install 'inferscale-sdk[llamaindex]'", name=error.name
    ) from error

__all__ = ["InferScaleLLM"]
