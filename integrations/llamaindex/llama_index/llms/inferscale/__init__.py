"""InferScale as a LlamaIndex LLM: chats that remember their user, over the SDK."""

from llama_index.llms.inferscale.base import InferScaleLLM

__all__ = ["InferScaleLLM"]
