"""One Triton kernel for an injection: gather slab rows, rotate keys in float32, write the paged blocks of all layers.

The portable path reads and writes everything two or three times: gather to a scratch, then the backend's own cache
write. Here each byte is read once and written once. It knows the cache's bytes, which only the backend should: it is
used only where paged_probe.py has proven on this machine's own cache that it writes what the backend writes.

Twin: LayerGroup.inject in layer_group.py. Needs torch and triton, no vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

TOKENS_PER_PROGRAM = 16


@triton.jit
def _pair_of(column, HALF: tl.constexpr, NEOX: tl.constexpr):  # type: ignore[no-untyped-def]
    """Is a rotary column the first of its pair, which is the other one, and which cos and sin belong to both?"""
    if NEOX:
        first = column < HALF
        return first, tl.where(first, column + HALF, column - HALF), tl.where(first, column, column - HALF)
    else:
        first = column % 2 == 0
        return first, tl.where(first, column + 1, column - 1), column // 2


@triton.jit
def _inject(  # type: ignore[no-untyped-def]
    slab_keys,  # (layers, rows, heads, head_dim)
    slab_values,
    key_caches,  # (layers,) int64: address of each layer's key cache
    value_caches,
    rows,  # (n,) int64
    slots,  # (n,) int64
    cos,  # (n, half) float32
    sin,
    n,
    slab_layer_stride,
    slab_row_stride,
    block_size,
    block_stride,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,  # HEAD_DIM, up to a power of two
    HALF: tl.constexpr,  # half of the rotary dimension; 0: keys stay as they are
    NEOX: tl.constexpr,
    TOKENS: tl.constexpr,
):
    layer = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    there = token < n
    row = tl.load(rows + token, mask=there, other=0)
    slot = tl.load(slots + token, mask=there, other=0)
    there = there & (slot >= 0)  # a backend's write skips them too
    target = (slot // block_size) * block_stride + (slot % block_size) * token_stride
    source = layer * slab_layer_stride + row * slab_row_stride
    kind = slab_keys.dtype
    key_cache = tl.load(key_caches + layer).to(kind)
    value_cache = tl.load(value_caches + layer).to(kind)

    column = tl.arange(0, DIM_BLOCK)
    inside = there[:, None] & (column < HEAD_DIM)[None, :]
    turned = column < 2 * HALF
    first, partner, angle = _pair_of(column, HALF, NEOX)
    partner = tl.where(turned, partner, column)
    angle_mask = there[:, None] & turned[None, :]
    if HALF > 0:
        at = token[:, None].to(tl.int64) * HALF + angle[None, :]
        c = tl.load(cos + at, mask=angle_mask, other=1.0)
        s = tl.load(sin + at, mask=angle_mask, other=0.0)
        s = tl.where(first[None, :], -s, s)
    for head in range(HEADS):
        base = source + head * HEAD_DIM
        out = target + head * head_stride
        value = tl.load(slab_values + base[:, None] + column[None, :], mask=inside)
        tl.store(value_cache + out[:, None] + column[None, :], value, mask=inside)
        key = tl.load(slab_keys + base[:, None] + column[None, :], mask=inside)
        if HALF > 0:
            other = tl.load(slab_keys + base[:, None] + partner[None, :], mask=inside)
            moved = key.to(tl.float32) * c + other.to(tl.float32) * s
            key = tl.where(turned[None, :], moved.to(key.dtype), key)
        tl.store(key_cache + out[:, None] + column[None, :], key, mask=inside)


@dataclass(frozen=True)
class PagedLayers:
    """Where the paged cache of layers of one shape lies; all layers have the same strides.

    key_caches, value_caches: (layers,) int64 addresses, on the device. Strides in elements.
    """

    key_caches: torch.Tensor
    value_caches: torch.Tensor
    block_size: int
    block_stride: int
    token_stride: int
    head_stride: int


def paged_layers(caches: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> PagedLayers:
    """From each layer's key and value cache, views of shape (blocks, block_size, heads, head_dim) on one device.

    Raises ValueError for caches that the kernel cannot write.
    """
    first = caches[0][0]
    if any(view.stride() != first.stride() or view.dtype != first.dtype for pair in caches for view in pair):
        raise ValueError("the layers' caches differ in strides or dtype")
    if first.stride(3) != 1:
        raise ValueError("a head's dimensions do not lie side by side")
    addresses = [torch.tensor([pair[side].data_ptr() for pair in caches], dtype=torch.int64) for side in (0, 1)]
    return PagedLayers(
        key_caches=addresses[0].to(first.device),
        value_caches=addresses[1].to(first.device),
        block_size=first.shape[1],
        block_stride=first.stride(0),
        token_stride=first.stride(1),
        head_stride=first.stride(2),
    )


def inject_paged(
    slab_keys: torch.Tensor,
    slab_values: torch.Tensor,
    paged: PagedLayers,
    rows: torch.Tensor,
    slots: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor] | None,
    is_neox: bool = True,
) -> None:
    """Fill `slots` (n,) int64 of every layer from slab `rows` (n,) int64.

    Args:
        slab_keys, slab_values: (layers, slab_rows, heads, head_dim), contiguous, position-free, the cache's dtype.
        turn: cos, sin, each (n, rotary_dim / 2) float32; None: the layers use no positions.
    """
    layers, _, heads, head_dim = slab_keys.shape
    count = rows.shape[0]
    if count == 0:
        return
    cos, sin = turn if turn is not None else (slab_keys, slab_keys)  # never read when HALF is 0
    grid = (-(-count // TOKENS_PER_PROGRAM), layers)
    _inject[grid](
        slab_keys,
        slab_values,
        paged.key_caches,
        paged.value_caches,
        rows,
        slots,
        cos.contiguous() if turn is not None else cos,
        sin.contiguous() if turn is not None else sin,
        count,
        slab_keys.stride(0),
        slab_keys.stride(1),
        paged.block_size,
        paged.block_stride,
        paged.token_stride,
        paged.head_stride,
        HEADS=heads,
        HEAD_DIM=head_dim,
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        HALF=0 if turn is None else cos.shape[1],
        NEOX=is_neox,
        TOKENS=TOKENS_PER_PROGRAM,
    )
