"""One attention layer as slab and tap see it. Imports no vLLM, so that whatever stands on it is tested without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferscale_server.rotary import RotaryTable

if TYPE_CHECKING:
    from vllm.model_executor.layers.attention import Attention


@dataclass(frozen=True)
class TappedLayer:
    """One decoder attention layer of the target model."""

    name: str
    attention: Attention
    rotary: Any  # the model's rotary module; None: the layer uses no positions
    heads: int  # KV heads of this rank
    head_dim: int


def table_of(rotary: Any) -> RotaryTable | None:
    """The model's own cos/sin table, or None for a layer without positions."""
    if rotary is None:
        return None
    if hasattr(rotary, "long_short_cos_sin_cache"):
        return _long_rope_table(rotary)
    return RotaryTable(rotary.cos_sin_cache, rotary.is_neox_style)


def _long_rope_table(rotary: Any) -> RotaryTable:
    """LongRoPE has a table for short contexts and one for long ones, one behind the other. vLLM chooses once, by the
    longest context that the server takes, so that keys of one server are all of one table."""
    both, short = rotary.long_short_cos_sin_cache, rotary.original_max_position_embeddings
    return RotaryTable(both[short:] if rotary.use_long_rope else both[:short], is_neox=True)
