"""The tap: copies keys and values of wanted tokens into the slab while the model writes them into its own cache.

Wraps each layer's `impl.do_kv_cache_update`, which sees exact keys after QK-norm and rotation and before any cache
quantisation. Inert unless armed for the current step. A fault in the tap leaves rows without its stamp, so the chunk
stays incomplete and is encoded again; the model's own write always happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from inferscale_server.engine.layer_group import CacheWrite, LayerGroup
from inferscale_server.engine.slab import Slab


@dataclass
class ArmedStep:
    """What this step's captured tokens are; arrays (n,) int64 on the slab's device. `source` and `found` come with the
    first layer's call: index of each wanted token in the batch, and whether it is really there."""

    rows: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    stamps: torch.Tensor
    source: torch.Tensor | None = None
    found: torch.Tensor | None = None

    def locate(self, slot_mapping: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Match wanted slots with the batch's (padding is -1), once a step; no device synchronisation."""
        if self.source is None or self.found is None:
            ordered, order = slot_mapping.to(torch.int64).sort()
            at = torch.searchsorted(ordered, self.slots).clamp_(max=ordered.shape[0] - 1)
            self.source, self.found = order[at], ordered[at] == self.slots
        return self.source, self.found


class Tap:
    """The wraps around all layers of a slab."""

    def __init__(self, slab: Slab, on_error: Callable[[BaseException], None]) -> None:
        self.slab = slab
        self.armed: ArmedStep | None = None
        self._on_error = on_error
        number = 0
        for group in slab.groups:
            for place, layer in enumerate(group.layers):
                wrapped = self._wrap(group.writes[place], group, place, number)
                layer.attention.impl.do_kv_cache_update = wrapped
                number += 1

    def arm(self, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, stamps: torch.Tensor) -> None:
        """Capture these tokens in the step that runs now. Until `finish` their rows count as not captured."""
        self.slab.stamps[:, rows] = 0
        self.armed = ArmedStep(rows, positions, slots, stamps)

    def finish(self) -> None:
        """After the forward: make what was captured position-free, and disarm."""
        armed, self.armed = self.armed, None
        if armed is not None and armed.found is not None:
            self.slab.unrotate(armed.rows, armed.positions)
            self.slab.stamps[:, armed.rows] = self.slab.stamps[:, armed.rows].abs()

    def _wrap(self, write: CacheWrite, group: LayerGroup, place: int, number: int) -> CacheWrite:
        def tapped(
            layer: Any, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
        ) -> None:
            if self.armed is not None:
                try:
                    self._copy(self.armed, group, place, number, key, value, slots)
                except Exception as error:  # the model's own write below must happen whatever the tap did
                    self._on_error(error)
            write(layer, key, value, cache, slots)

        return tapped

    def _copy(
        self,
        armed: ArmedStep,
        group: LayerGroup,
        place: int,
        number: int,
        key: torch.Tensor,  # (tokens, heads, head_dim), rotated; may be longer than slots (padding)
        value: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        source, found = armed.locate(slots)
        shape = (-1, *group.keys.shape[2:])
        group.capture(place, armed.rows, key[source].view(shape), value[source].view(shape))
        self.slab.stamps[number, armed.rows] = -armed.stamps * found  # negative: its keys are still rotated
