"""InferScale as a LlamaIndex memory: a conversation's history, and what is remembered beyond it."""

from llama_index.memory.inferscale.base import InferScaleMemory

__all__ = ["InferScaleMemory"]
