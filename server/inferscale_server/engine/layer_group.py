"""Layers of one shape and one rotation: their keys and values, from capture to injection, in the model's own type.

Knows one group's arrays and the backend's cache writes; refuses to know which rows hold what.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.rotary import Gather, RotaryTable, rotate

if TYPE_CHECKING:
    from inferscale_server.engine.paged_kernel import PagedLayers

CacheWrite = Callable[[Any, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]

MAX_TOKENS_PER_PASS = 2048
"""Rows of the scratch. It is kept, because fresh memory costs page faults: twice the time of the gather on a CPU."""


@dataclass
class LayerGroup:
    """Layers of one shape and one rotation: their keys and values lie in one array each."""

    layers: list[TappedLayer]
    writes: list[CacheWrite]  # the backend's own cache write of each layer, unwrapped
    table: RotaryTable | None
    keys: torch.Tensor  # (layers, rows, heads, head_dim), model dtype (coded: int8), position-free
    values: torch.Tensor  # (layers, rows, heads, head_dim)
    scratch_keys: torch.Tensor  # flat, room for (layers, MAX_TOKENS_PER_PASS, heads, head_dim)
    scratch_values: torch.Tensor  # (MAX_TOKENS_PER_PASS, heads, head_dim): one layer's at a time; coded: all layers'
    paged: PagedLayers | None = None  # set where the paged kernel was proven to write what the backend writes

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that the rows consist of; each (layers, rows, ...)."""
        return [self.keys, self.values]

    def inject_fast(self, gather: Gather, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """`inject` by the paged kernel where it was proven. Twin of `inject`."""
        if self.paged is None:
            self.inject(gather, rows, positions, slots)
            return
        from inferscale_server.engine.paged_kernel import inject_paged

        turn = None if self.table is None else self.table.at(positions)
        is_neox = self.table is None or self.table.is_neox
        inject_paged(self.keys, self.values, self.paged, rows, slots, turn, is_neox)

    def inject(self, gather: Gather, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Write `rows` (n,) into the paged cache at `slots` (n,), keys rotated to `positions` (n,)."""
        keys, values = self.scratch(rows.shape[0])
        if self.table is None:
            torch.index_select(self.keys, 1, rows, out=keys)
        else:
            gather(keys, self.keys, rows, *self.table.at(positions), self.table.is_neox)
        for number, (layer, write) in enumerate(zip(self.layers, self.writes, strict=True)):
            torch.index_select(self.values[number], 0, rows, out=values)
            write(layer.attention, keys[number], values, layer.attention.kv_cache, slots)

    def scratch(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the keys of all layers, (layers, count, heads, head_dim), and the values of one, without layers."""
        layers, _, heads, head_dim = self.keys.shape
        shape = (layers, count, heads, head_dim)
        return self.scratch_keys[: math.prod(shape)].view(shape), self.scratch_values[:count]

    def warm(self, gather: Gather, rows: torch.Tensor) -> None:
        """Compile what `inject` calls for `rows` (n,)."""
        if self.table is not None:
            keys, _ = self.scratch(rows.shape[0])
            gather(keys, self.keys, rows, *self.table.at(rows), self.table.is_neox)

    def capture(self, place: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take what layer number `place` computed for `rows` (n,), each (n, heads, head_dim), keys still rotated."""
        self.keys[place].index_copy_(0, rows, keys)
        self.values[place].index_copy_(0, rows, values)

    def unrotate(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Make keys that were captured at `positions` position-free, in place."""
        self.keys[:, rows] = self.position_free(self.keys[:, rows], positions)

    def position_free(self, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Keys (layers, n, heads, head_dim) without the rotation to `positions` (n,)."""
        if self.table is None:
            return keys
        return rotate(keys, *self.table.back_from(positions), self.table.is_neox)

    def read(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Copies of the keys and the values of `rows` (n,), each (layers, n, heads, head_dim) in the model's dtype."""
        return [self.keys.index_select(1, rows), self.values.index_select(1, rows)]

    def write(self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """The inverse of `read`."""
        self.keys.index_copy_(1, rows, keys)
        self.values.index_copy_(1, rows, values)
