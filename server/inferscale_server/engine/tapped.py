"""One attention layer as slab and tap see it. Imports no vLLM, so that whatever stands on it is tested without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferscale_server.rotary import RotaryTable

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding


@dataclass(frozen=True)
class TappedLayer:
    """One decoder attention layer of the target model."""

    name: str
    attention: Attention
    rotary: RotaryEmbedding | None  # None: the layer uses no positions
    heads: int  # KV heads of this rank
    head_dim: int


def table_of(rotary: RotaryEmbedding | None) -> RotaryTable | None:
    """The model's own cos/sin table, or None for a layer without positions."""
    return None if rotary is None else RotaryTable(rotary.cos_sin_cache, rotary.is_neox_style)
