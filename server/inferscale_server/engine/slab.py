"""The slab: preallocated arrays that hold chunk KV, one row a token, position-free keys and values of every layer.

Knows rows; refuses to know what they mean (the catalog in the API process does) and which bytes the paged cache holds
(the backend's own `do_kv_cache_update` writes it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

import torch

from inferscale_server.engine.coded_group import CodedGroup
from inferscale_server.engine.layer_group import MAX_TOKENS_PER_PASS, LayerGroup
from inferscale_server.engine.tapped import TappedLayer, table_of
from inferscale_server.kv_codec import GroupShape, KvCodec, KvLayout
from inferscale_server.rotary import Gather, gather_rotated

SlabCodec = Literal["none", "int8"]


class Slab:
    """All layer groups of one rank. `gather` is gather_rotated, compiled where that works."""

    def __init__(
        self,
        layers: list[TappedLayer],
        rows: int,
        dtype: torch.dtype,
        device: torch.device,
        codec: SlabCodec = "none",
    ) -> None:
        """`dtype`: the model's, and the rows' too unless they are codes."""
        self.rows, self.dtype, self.codec = rows, dtype, codec
        self.device = device
        self.groups = list(_grouped(layers, rows, dtype, device, codec))
        self.stamps = torch.zeros((len(layers), rows), dtype=torch.int64, device=device)
        self.gather: Gather = gather_rotated
        self.injector = "portable"  # or what was proven of the paged kernel, in words

    def prove_kernel(self) -> None:
        """Switch the paged kernel on for every group if it is proven for all. Before the first request only."""
        if self.codec != "none":
            self.injector = f"portable: the paged kernel reads keys and values in the model's type, not {self.codec}"
            return
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
    def tensors(self) -> list[torch.Tensor]:
        """For each group keys, then values, each (layers, rows, heads, head_dim); where they are codes, also scales."""
        return [tensor for group in self.groups for tensor in group.tensors]

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one token's keys and values on this rank."""
        return sum(tensor[:, 0].numel() * tensor.element_size() for tensor in self.tensors)

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

    def layout(self, rank: int, world: int, codec: KvCodec = "none") -> KvLayout:
        """How this rank's part of a KV file is laid out."""
        shapes = [(g.keys.shape[0], g.keys.shape[2], g.keys.shape[3]) for g in self.groups]
        dtype = str(self.dtype).removeprefix("torch.")
        return KvLayout(dtype, tuple(GroupShape(*shape) for shape in shapes), rank, world, codec)

    def read(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Copies of these rows (n,): for each group keys, then values, each (layers, n, heads, head_dim)."""
        return [numbers for group in self.groups for numbers in group.read(rows)]

    def write(self, rows: torch.Tensor, numbers: Iterable[torch.Tensor], stamp: int) -> None:
        """The inverse of `read`: fill rows (n,), and mark them complete for this attempt when all is there.

        Where `numbers` raises, the rows count as not captured.
        """
        self.stamps[:, rows] = 0
        parts = (part.to(self.device) for part in numbers)
        for group, keys, values in zip(self.groups, parts, parts, strict=True):
            group.write(rows, keys, values)
        self.stamps[:, rows] = stamp

    def complete(self, rows: torch.Tensor, stamp: int) -> bool:
        """Has this attempt captured every layer of every row, and is all of it finite?"""
        if not self.holds(rows, stamp):
            return False
        return all(bool(torch.isfinite(tensor[:, rows]).all()) for tensor in self.tensors)

    def holds(self, rows: torch.Tensor, stamp: int) -> bool:
        """Has this attempt, and none after it, written every layer of every row?"""
        return bool((self.stamps[:, rows] == stamp).all())

    def wipe(self, rows: torch.Tensor) -> None:
        """Overwrite rows with zeros: what was forgotten is not left in memory."""
        self.stamps[:, rows] = 0
        for tensor in self.tensors:
            tensor[:, rows] = 0


def _grouped(
    layers: list[TappedLayer], rows: int, dtype: torch.dtype, device: torch.device, codec: SlabCodec
) -> Iterator[LayerGroup]:
    by_kind: dict[tuple[int, int, int], list[TappedLayer]] = {}
    for layer in layers:
        by_kind.setdefault((layer.heads, layer.head_dim, id(layer.rotary)), []).append(layer)
    for (heads, head_dim, _), members in by_kind.items():
        shape, coded = (len(members), rows, heads, head_dim), codec != "none"
        scratch = (len(members), MAX_TOKENS_PER_PASS, heads, head_dim)
        kind, kept = (CodedGroup, torch.int8) if coded else (LayerGroup, dtype)
        yield kind(
            layers=members,
            writes=[layer.attention.impl.do_kv_cache_update for layer in members],
            table=table_of(members[0].rotary),
            keys=_touched(shape, kept, device),
            values=_touched(shape, kept, device),
            scratch_keys=_touched(scratch, dtype, device).view(-1),
            scratch_values=_touched(scratch if coded else scratch[1:], dtype, device),
        )


def _touched(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros in memory that is really there: `torch.zeros` leaves each page's first use to fault, in some request."""
    return torch.empty(shape, dtype=dtype, device=device).zero_()
