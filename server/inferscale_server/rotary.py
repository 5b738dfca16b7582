"""Rotation of keys: rotary position embedding applied and taken back, for any model whose cos/sin table we have.

The table is the model's own (rounded to its dtype, scaled by YaRN's attention factor), so that keys taken at one
position and put back at the same position are the model's keys again. Taking back divides by cos² + sin², which is 1 up
to rounding, or the squared scaling factor. Source: Su et al., RoFormer (arXiv 2104.09864), eq. 34; InferScale
(arXiv 2607.27090) for stored pre-RoPE keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec

import torch

P = ParamSpec("P")
Sized = Sequence[tuple[torch.Tensor, int]]
Gather = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, bool], None]

SAMPLED = 64
"""Positions that tell two tables apart."""


class RotaryTable:
    """cos and sin of one rotary embedding.

    Args:
        cos_sin: (positions, rotary_dim), cos in the first half of the columns, sin in the second.
        is_neox: halves are rotated against each other; else neighbours (GPT-J).
    """

    def __init__(self, cos_sin: torch.Tensor, is_neox: bool) -> None:
        cos, sin = cos_sin.detach().float().chunk(2, dim=-1)
        self.cos = cos.contiguous()  # (positions, rotary_dim / 2) float32
        self.sin = sin.contiguous()
        norm = cos * cos + sin * sin
        self.inverse_cos = (cos / norm).contiguous()
        self.inverse_sin = (-sin / norm).contiguous()
        self.is_neox = is_neox
        self.positions = cos.shape[0]
        self.rotary_dim = 2 * cos.shape[1]

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin, each (n, rotary_dim / 2) float32, that move position-free keys to `positions` (n,)."""
        return self.cos[positions], self.sin[positions]

    def sample(self) -> bytes:
        """Bytes that differ where two tables do: the first positions' cosines and sines, which hold every frequency."""
        return torch.cat((self.cos[:SAMPLED], self.sin[:SAMPLED])).cpu().numpy().tobytes()

    def back_from(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos, sin that make keys taken at `positions` position-free."""
        return self.inverse_cos[positions], self.inverse_sin[positions]


def rotate(keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> torch.Tensor:
    """Rotate keys in float32 and return them in their own dtype.

    Args:
        keys: (..., n, heads, head_dim); columns past the rotary dimension pass through.
        cos, sin: (n, rotary_dim / 2) float32.
    """
    half = cos.shape[-1]
    c, s = cos[:, None, :], sin[:, None, :]  # (n, 1, half)
    rotary = keys[..., : 2 * half].float()
    if is_neox:
        a, b = rotary[..., :half], rotary[..., half:]
        turned = torch.cat((a * c - b * s, b * c + a * s), dim=-1)
    else:
        a, b = rotary[..., 0::2], rotary[..., 1::2]
        turned = torch.stack((a * c - b * s, b * c + a * s), dim=-1).flatten(-2)
    turned = turned.to(keys.dtype)
    if 2 * half == keys.shape[-1]:
        return turned
    return torch.cat((turned, keys[..., 2 * half :]), dim=-1)


def gather_rotated(
    out: torch.Tensor, slab_keys: torch.Tensor, rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool
) -> None:
    """Position-free keys of `rows`, of all layers at once, moved to where cos and sin say. Twin of `rotate`.

    Written on pairs with one store, because this is the form to compile: `compiled_gather` makes one loop of it that
    the compiler vectorises. By halves with two stores it takes twice as long, with the `cat` of `rotate` three times.

    Args:
        out: (layers, n, heads, head_dim) in the slab's dtype; overwritten.
        slab_keys: (layers, slab_rows, heads, head_dim).
        rows: (n,) int64.
        cos, sin: (n, rotary_dim / 2) float32; columns past the rotary dimension pass through.
    """
    half = cos.shape[-1]
    store_turned(out, pairs_of(slab_keys, half, is_neox)[:, rows].float(), cos, sin, is_neox)
    if 2 * half < out.shape[-1]:
        out[..., 2 * half :] = slab_keys[:, rows, :, 2 * half :]


def store_turned(out: torch.Tensor, pairs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox: bool) -> None:
    """Turn pairs (layers, n, heads, 2, rotary_dim / 2) float32, from `pairs_of`, into out's rotary columns."""
    pairs_of(out, cos.shape[-1], is_neox).copy_(turned_pairs(pairs, cos, sin))


def turned_pairs(pairs: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (layers, n, heads, 2, rotary_dim / 2) float32, turned."""
    c, s = cos[:, None, None, :], torch.stack((-sin, sin), dim=1)[:, None]
    return pairs * c + pairs.flip(-2) * s


def compiled_gather() -> Gather:
    """`gather_rotated`, compiled at its first call."""
    return compiled_for_any_rows(
        gather_rotated, lambda out, _slab_keys, rows, cos, sin, _is_neox: ((out, 1), (rows, 0), (cos, 0), (sin, 0))
    )


def compiled_for_any_rows(function: Callable[P, None], sized: Callable[P, Sized]) -> Callable[P, None]:
    """`function`, compiled at its first call for that call's sizes, but for any number of rows.

    With every size left open the compiled loop masks each store, and takes twice as long.

    Args:
        sized: from the same arguments, the tensors and their dimensions that are as long as there are rows.
    """
    compiled = torch.compile(function)

    def call(*args: P.args, **named: P.kwargs) -> None:
        for tensor, dimension in sized(*args, **named):
            torch._dynamo.mark_dynamic(tensor, dimension)
        compiled(*args, **named)

    return call


def pairs_of(keys: torch.Tensor, half: int, is_neox: bool) -> torch.Tensor:
    """A view of the rotary columns, (..., 2, half): what is rotated against each other stands in one column."""
    rotary, around = keys[..., : 2 * half], keys.shape[:-1]
    return rotary.view(*around, 2, half) if is_neox else rotary.view(*around, half, 2).transpose(-1, -2)
