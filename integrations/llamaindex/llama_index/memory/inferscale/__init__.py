"""InferScale as a LlamaIndex memory: a conversation's history, and what is remembered beyond it."""

try:
    from llama_index.memory.inferscale.base import InferScaleMemory
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("llama_index.core"):
        raise
    raise ModuleNotFoundError(
        "llama_index.memory.inferscale needs llama-index-core: pip install 'inferscale-sdk[llamaindex]'",
        name=error.name,
    ) from error

__all__ = ["InferScaleMemory"]
