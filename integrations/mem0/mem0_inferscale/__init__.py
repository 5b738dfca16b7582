"""mem0 on InferScale: a vector store, a ready configuration, and mem0's extraction without its store.

    import mem0_inferscale
    from mem0 import Memory

    config = mem0_inferscale.memory_config("http://127.0.0.1:8000", model="smollm2-135m-instruct")
    memory = Memory.from_config(config)

mem0 reads its environment when it is first imported: set MEM0_TELEMETRY=false (nothing is sent, nothing is fetched) and
MEM0_DIR (where it writes) before.
"""

from __future__ import annotations

try:
    from mem0_inferscale.config import InferScaleConfig, memory_config
    from mem0_inferscale.extractor import ExtractedFact, ExtractionFailed, Mem0Extractor
    from mem0_inferscale.memory import InferScaleMemory
    from mem0_inferscale.registration import register
    from mem0_inferscale.store import InferScaleVectorStore
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "mem0":
        raise
    raise ModuleNotFoundError(
        "mem0_inferscale needs mem0: pip install 'inferscale-sdk[mem0]'", name=error.name
    ) from error

__all__ = [
    "ExtractedFact",
    "ExtractionFailed",
    "InferScaleConfig",
    "InferScaleMemory",
    "InferScaleVectorStore",
    "Mem0Extractor",
    "memory_config",
    "register",
]
