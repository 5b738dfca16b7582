"""BERT's layers in a third of the calls: one projection for queries, keys and values, GELU within its linear layer.

A query of 15 tokens costs a layer as much time in calls as in arithmetic. On the embedded embedder this takes a quarter
off a question beside `packed_linear` alone. A layer is replaced only after both have computed the same from the same
numbers, since what a layer takes and returns differs between versions of transformers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from inferscale_server.packed_linear import PackedLinear

PROBE_TOKENS = 5
TOLERANCE = 0.05
"""Of outputs of a layer norm, about 1 in size, in bfloat16. Two layers that differ in kind are apart by 1."""


class PackedBertLayer(torch.nn.Module):
    """A BertLayer for inference, bfloat16, on a CPU: attention in both directions, no dropout, no cache."""

    def __init__(self, layer: Any) -> None:
        """Raises AttributeError, or RuntimeError, for a layer that is not laid out like BERT's."""
        super().__init__()
        attention, after, out = layer.attention.self, layer.attention.output, layer.output
        self.width: int = attention.query.in_features
        self._heads: int = attention.num_attention_heads
        self._project = PackedLinear(_side_by_side(attention.query, attention.key, attention.value))
        self._mix, self._mix_norm = PackedLinear(after.dense), after.LayerNorm
        self._widen = PackedLinear(layer.intermediate.dense, after="gelu")
        self._narrow, self._narrow_norm = PackedLinear(out.dense), out.LayerNorm

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, *_: Any, **__: Any) -> torch.Tensor:
        """x (texts, tokens, width) to the same shape; `mask` as scaled_dot_product_attention takes it."""
        texts, tokens, width = x.shape
        query, key, value = self._project(x).view(texts, tokens, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self._mix_norm(self._mix(seen.transpose(1, 2).reshape(texts, tokens, width)) + x)
        y: torch.Tensor = self._narrow_norm(self._narrow(self._widen(x)) + x)
        return y


def pack_bert(module: torch.nn.Module) -> None:
    """Replace each bfloat16 BertLayer below `module` for which the packed one gives the same numbers."""
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child).__name__ == "BertLayer"
    ]
    for parent, name, layer in found:
        packed = _packed(layer)
        if packed is None:
            return
        setattr(parent, name, packed)


@torch.inference_mode()
def _packed(layer: Any) -> PackedBertLayer | None:
    """None where the layer is of another kind (a decoder's, another activation), or packing is not possible here."""
    try:
        if layer.attention.self.config.output_hidden_states or layer.attention.self.config.output_attentions:
            return None  # they are collected from layers of the original kind
        packed = PackedBertLayer(layer).eval()
        numbers = torch.Generator().manual_seed(0)
        x = torch.randn((2, PROBE_TOKENS, packed.width), generator=numbers).bfloat16()
        mask = torch.ones((2, 1, PROBE_TOKENS, PROBE_TOKENS), dtype=torch.bool)
        mask[0, ..., -1] = False
        same = all(torch.allclose(packed(x, seen), layer(x, seen), atol=TOLERANCE) for seen in (None, mask))
    except Exception:  # another version's layer, or a torch without these operators: whatever is raised, it stays
        return None
    return packed if same else None


def _side_by_side(*linears: torch.nn.Linear) -> torch.nn.Linear:
    """One layer that computes what these do, one behind the other in the last dimension."""
    first = linears[0]
    joined = torch.nn.Linear(first.in_features, sum(linear.out_features for linear in linears), device="meta")
    joined.weight = torch.nn.Parameter(torch.cat([linear.weight for linear in linears]), requires_grad=False)
    joined.bias = torch.nn.Parameter(torch.cat([linear.bias for linear in linears]), requires_grad=False)
    return joined
