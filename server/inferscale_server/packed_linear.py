"""Linear layers whose weights are laid out for the processor once, not at every call.

A query of 15 tokens spends its time reading weights; oneDNN's own layout takes a quarter off an embedding on a CPU with
bfloat16 instructions. Same numbers as torch.nn.Linear. The operators are those that torch's own compiler emits.
"""

from __future__ import annotations

from typing import Literal

import torch


class PackedLinear(torch.nn.Module):
    """torch.nn.Linear for inference, bfloat16, on a CPU."""

    TOKENS_HINT = 16

    def __init__(self, linear: torch.nn.Linear, after: Literal["none", "gelu"] = "none") -> None:
        """`after`: what is done to each number that comes out."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), self.TOKENS_HINT)
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._after: tuple[str, list[float], str] = (
            after,
            [],
            "none" if after == "gelu" else "",
        )  # name, numbers, which form of GELU

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., in_features) to (..., out_features)."""
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, *self._after)
        return y


def pack_linears(module: torch.nn.Module) -> None:
    """Replace each bfloat16 torch.nn.Linear below `module`. Does nothing where this torch has no such operators."""
    try:
        packed = {
            (parent, name): PackedLinear(child)
            for parent in module.modules()
            for name, child in parent.named_children()
            if type(child) is torch.nn.Linear and child.weight.dtype is torch.bfloat16
        }
        for layer in list(packed.values())[:1]:
            layer(torch.zeros(1, layer.in_features, dtype=torch.bfloat16))
    except (RuntimeError, AttributeError, NotImplementedError):
        return
    for (parent, name), layer in packed.items():
        setattr(parent, name, layer)
