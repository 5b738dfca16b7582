"""Proves the paged kernel on this machine's own cache, or says why the portable path stays.

The kernel writes bytes that belong to the backend, so nothing is taken on trust: a few invented tokens are written into
the empty cache once by the backend and once by the kernel, for each way to read the cache's shape that is known, and
the two must agree. Runs once, before the first request; leaves cache and slab as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from inferscale_server.rotary import gather_rotated

if TYPE_CHECKING:
    from inferscale_server.engine.layer_group import LayerGroup
    from inferscale_server.engine.paged_kernel import PagedLayers

TOKENS = 37
"""More than two of the kernel's programs, and no multiple of one."""
STRIDE = 7
"""Slots and positions apart from each other, so that a block's edge and a program's edge fall in between."""

View = tuple[torch.Tensor, torch.Tensor]
Reading = Callable[[torch.Tensor, int], View]
"""From a layer's cache tensor and its head dimension to keys and values, each (blocks, block_size, heads, head_dim)."""


def side_by_side(cache: torch.Tensor, head_dim: int) -> View:
    """(blocks, heads, block_size, 2 * head_dim): FlashAttention, FlashInfer and Triton in vLLM 0.32 and 0.33."""
    both = cache.transpose(1, 2)
    return both[..., :head_dim], both[..., head_dim:]


def in_a_block(cache: torch.Tensor, head_dim: int) -> View:
    """(blocks, 2, block_size, heads, head_dim)."""
    keys, values = cache.unbind(1)
    return keys, values


def apart(cache: torch.Tensor, head_dim: int) -> View:
    """(2, blocks, block_size, heads, head_dim)."""
    keys, values = cache.unbind(0)
    return keys, values


READINGS: tuple[Reading, ...] = (side_by_side, in_a_block, apart)


@dataclass(frozen=True, slots=True)
class Proof:
    """`paged` is set when the kernel may be used; else `reason` says why not, for an operator."""

    paged: PagedLayers | None
    reason: str


def prove(group: LayerGroup) -> Proof:
    """Try the kernel on the layers of one group. Never raises; needs TOKENS * STRIDE empty slots and free rows."""
    try:
        from inferscale_server.engine import paged_kernel
    except ImportError as error:
        return Proof(None, f"triton cannot be imported: {error}")
    reasons = []
    for reading in READINGS:
        try:
            views = _views(group, reading)
            paged = paged_kernel.paged_layers(views)
            difference = _difference(group, paged, views)
        except Exception as error:  # a shape that is none, a compiler that is missing: the portable path serves
            reasons.append(f"{reading.__name__}: {type(error).__name__}")
            continue
        if difference is None:
            return Proof(paged, f"proven ({reading.__name__})")
        reasons.append(f"{reading.__name__}: {difference}")
    return Proof(None, "not proven on this cache: " + "; ".join(reasons))


def _views(group: LayerGroup, reading: Reading) -> Sequence[View]:
    _, _, heads, head_dim = group.keys.shape
    views = [reading(layer.attention.kv_cache, head_dim) for layer in group.layers]
    for view in (view for pair in views for view in pair):
        if view.dim() != 4 or view.shape[2:] != (heads, head_dim) or view.dtype != group.keys.dtype:
            raise ValueError("the cache has another shape or dtype")
    return views


def _difference(group: LayerGroup, paged: PagedLayers, views: Sequence[View]) -> str | None:
    """What the kernel writes otherwise than the backend; None: nothing. Copies only the blocks that are touched."""
    from inferscale_server.engine.paged_kernel import inject_paged

    rows, positions, slots = _tokens(group, paged.block_size)
    blocks = int(slots.max()) // paged.block_size + 1
    touched = [view[:blocks] for pair in views for view in pair]
    turn = None if group.table is None else group.table.at(positions)
    is_neox = group.table is None or group.table.is_neox
    before = group.keys[:, rows].clone(), group.values[:, rows].clone()
    try:
        for array in (group.keys, group.values):
            array[:, rows] = torch.randn(array[:, rows].shape, device=array.device).to(array.dtype)
        _clear(touched)
        group.inject(gather_rotated, rows, positions, slots)
        wanted = [part.clone() for part in touched]
        _clear(touched)
        inject_paged(group.keys, group.values, paged, rows, slots, turn, is_neox)
        allowed = [_rounding(part) if turn and number % 2 == 0 else None for number, part in enumerate(wanted)]
        return next((found for three in zip(touched, wanted, allowed, strict=True) if (found := _unlike(*three))), None)
    finally:
        group.keys[:, rows], group.values[:, rows] = 0, 0
        group.inject(gather_rotated, rows, positions, slots)  # zeros, wherever the backend has written
        group.keys[:, rows], group.values[:, rows] = before
        _clear(touched)


def _tokens(group: LayerGroup, block_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, positions and slots of the invented tokens, in no order; slots past the first block, vLLM's null block."""
    device, places = group.keys.device, torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
    rows = (places + 1).remainder(group.keys.shape[1]).to(device)
    positions = (places * STRIDE).to(device)
    slots = (block_size + places * STRIDE).to(device)
    if group.table is not None:
        positions = positions.remainder(group.table.positions)
    return rows, positions, slots


def _clear(parts: Sequence[torch.Tensor]) -> None:
    for part in parts:
        part.zero_()


def _rounding(turned: torch.Tensor) -> torch.Tensor:
    """How far keys may be apart where a product and a sum are fused: one step of the dtype, and what float32 loses of
    two terms that cancel each other out."""
    exact = turned.float().abs()
    return 2 * torch.finfo(turned.dtype).eps * exact + 4 * torch.finfo(torch.float32).eps * exact.max()


def _unlike(got: torch.Tensor, wanted: torch.Tensor, allowed: torch.Tensor | None) -> str | None:
    """What is only moved, values and keys without a rotation (`allowed` None), must be the very same."""
    difference = (got.float() - wanted.float()).abs()
    if bool((difference <= (0.0 if allowed is None else allowed)).all()):
        return None
    return f"off by {difference.max().item():.3g}"
