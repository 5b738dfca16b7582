"""The slab: preallocated arrays that hold chunk KV, one row a token, position-free keys and values of every layer.

Knows rows; refuses to know what they mean (the catalog in the API process does) and which bytes the paged cache holds
(the backend's own `do_kv_cache_update` writes it).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inferscale_server.engine.tapped import TappedLayer, table_of
from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import GroupShape, KvLayout
from inferscale_server.rotary import Gather, RotaryTable, gather_rotated, rotate

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
    keys: torch.Tensor  # (layers, rows, heads, head_dim), model dtype, position-free
    values: torch.Tensor  # (layers, rows, heads, head_dim)
    scratch_keys: torch.Tensor  # flat, room for (layers, MAX_TOKENS_PER_PASS, heads, head_dim)
    scratch_values: torch.Tensor  # (MAX_TOKENS_PER_PASS, heads, head_dim): one layer's at a time
    paged: PagedLayers | None = None  # set where the paged kernel was proven to write what the backend writes

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

    def unrotate(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Make keys that were captured at `positions` position-free, in place."""
        if self.table is not None:
            cos, sin = self.table.back_from(positions)
            self.keys[:, rows] = rotate(self.keys[:, rows], cos, sin, self.table.is_neox)


class Slab:
    """All layer groups of one rank. `gather` is gather_rotated, compiled where that works."""

    def __init__(self, layers: list[TappedLayer], rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = rows
        self.device = device
        self.groups = list(_grouped(layers, rows, dtype, device))
        self.stamps = torch.zeros((len(layers), rows), dtype=torch.int64, device=device)
        self.gather: Gather = gather_rotated
        self.injector = "portable"  # or what was proven of the paged kernel, in words

    def prove_kernel(self) -> None:
        """Switch the paged kernel on for every group if it is proven for all. Before the first request only."""
        from inferscale_server.engine.paged_probe import prove

        proofs = [prove(group) for group in self.groups]
        unproven = [proof.reason for proof in proofs if proof.paged is None]
        if unproven:
            self.injector = f"portable: {unproven[0]}"
            return
        for group, proof in zip(self.groups, proofs, strict=True):
            group.paged = proof.paged
        self.injector = f"triton: {proofs[0].reason}"

    @property
    def arrays(self) -> list[torch.Tensor]:
        """For each group keys, then values; each (layers, rows, heads, head_dim)."""
        return [array for group in self.groups for array in (group.keys, group.values)]

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one token's keys and values on this rank."""
        return sum(2 * g.keys[:, 0].numel() * g.keys.element_size() for g in self.groups)

    def rotary_digest(self) -> str:
        """Names the rotations. They follow from more than the model's configuration: LongRoPE's from the longest
        context that the server takes."""
        digest = hashlib.sha256()
        for group in self.groups:
            digest.update(b"none" if group.table is None else group.table.sample())
        return digest.hexdigest()

    def inject(self, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Fill paged-cache `slots` from slab `rows`, rotated to `positions`; each (n,) int64 on the slab's device."""
        for start in range(0, rows.shape[0], MAX_TOKENS_PER_PASS):
            part = slice(start, start + MAX_TOKENS_PER_PASS)
            # A compiled function is made anew for length 1, which would take seconds in somebody's request.
            gather = self.gather if rows[part].shape[0] > 1 else gather_rotated
            for group in self.groups:
                group.inject_fast(gather, rows[part], positions[part], slots[part])

    def unrotate(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Make freshly captured keys position-free."""
        for group in self.groups:
            group.unrotate(rows, positions)

    def layout(self, rank: int, world: int) -> KvLayout:
        """How this rank's part of a KV file is laid out."""
        shapes = [(g.keys.shape[0], g.keys.shape[2], g.keys.shape[3]) for g in self.groups]
        dtype = str(self.groups[0].keys.dtype).removeprefix("torch.")
        return KvLayout(dtype, tuple(GroupShape(*shape) for shape in shapes), rank, world)

    def read(self, rows: torch.Tensor) -> list[memoryview]:
        """Bytes of these rows (n,): for each group keys, then values, each (layers, n, heads, head_dim)."""
        arrays = [array for group in self.groups for array in (group.keys, group.values)]
        copies = [array.index_select(1, rows).cpu().contiguous() for array in arrays]
        return [copy.view(torch.uint8).numpy().data.cast("B") for copy in copies]

    def write(self, rows: torch.Tensor, payload: bytearray, stamp: int) -> None:
        """The inverse of `read`: fill rows (n,), and mark them complete for this attempt when all is there.

        Raises KvFileError for what is not finite; the rows then count as not captured.
        """
        start = 0
        self.stamps[:, rows] = 0
        for array in (array for group in self.groups for array in (group.keys, group.values)):
            layers, _, heads, head_dim = array.shape
            shape = (layers, rows.shape[0], heads, head_dim)
            values = torch.frombuffer(payload, dtype=array.dtype, count=math.prod(shape), offset=start).view(shape)
            if not bool(torch.isfinite(values).all()):
                raise KvFileError("not_finite", "a checksum holds, but these are no keys and values")
            array.index_copy_(1, rows, values.to(array.device))
            start += values.numel() * values.element_size()
        assert start == len(payload), f"{len(payload)} bytes for {start}"
        self.stamps[:, rows] = stamp

    def complete(self, rows: torch.Tensor, stamp: int) -> bool:
        """Has this attempt captured every layer of every row, and is all of it finite?"""
        if not self.holds(rows, stamp):
            return False
        return all(bool(torch.isfinite(a[:, rows]).all()) for g in self.groups for a in (g.keys, g.values))

    def holds(self, rows: torch.Tensor, stamp: int) -> bool:
        """Has this attempt, and none after it, written every layer of every row?"""
        return bool((self.stamps[:, rows] == stamp).all())

    def wipe(self, rows: torch.Tensor) -> None:
        """Overwrite rows with zeros: what was forgotten is not left in memory."""
        self.stamps[:, rows] = 0
        for group in self.groups:
            group.keys[:, rows] = 0
            group.values[:, rows] = 0


def _grouped(layers: list[TappedLayer], rows: int, dtype: torch.dtype, device: torch.device) -> Iterator[LayerGroup]:
    by_kind: dict[tuple[int, int, int], list[TappedLayer]] = {}
    for layer in layers:
        by_kind.setdefault((layer.heads, layer.head_dim, id(layer.rotary)), []).append(layer)
    for (heads, head_dim, _), members in by_kind.items():
        shape = (len(members), rows, heads, head_dim)
        scratch = (len(members), MAX_TOKENS_PER_PASS, heads, head_dim)
        yield LayerGroup(
            layers=members,
            writes=[layer.attention.impl.do_kv_cache_update for layer in members],
            table=table_of(members[0].rotary),
            keys=_touched(shape, dtype, device),
            values=_touched(shape, dtype, device),
            scratch_keys=_touched(scratch, dtype, device).view(-1),
            scratch_values=_touched(scratch[1:], dtype, device),
        )


def _touched(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in memory that is really there: `torch.zeros` leaves each page's first use to fault, in some request."""
    return torch.empty(shape, dtype=dtype, device=device).zero_()
