"""A layer group whose rows are int8 codes: half the memory, made when a token is captured, read when it is injected.

Twin of `LayerGroup`, by the portable path only: the paged kernel reads numbers. The keys' channels are taken from the
first tokens that come, normally the default header's, and stay: rows are then worth something without each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from inferscale_server.codes import SCALE_DTYPE, Codes, channels_of, dequantise, nearest
from inferscale_server.engine.layer_group import LayerGroup
from inferscale_server.kv_codec import KvCodec
from inferscale_server.rotary import Gather, compiled_for_any_rows, pairs_of, turned_pairs

CODEC: KvCodec = "int8"
"""Four bits would be off by a tenth of a key, which the gate takes for a fault."""

Turn = tuple[torch.Tensor, torch.Tensor]
Decode = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, Turn | None, bool], None
]


def decode_rows(
    out: torch.Tensor,
    whole: torch.Tensor,
    scales: torch.Tensor,
    rows: torch.Tensor,
    channels: torch.Tensor | None,
    turn: Turn | None,
    is_neox: bool,
) -> None:
    """Numbers of `rows` (n,), of all layers at once, moved to where `turn` says. Written as one loop, to be compiled.

    None is beyond what `out` can hold: rounding may carry the largest numbers so far.

    Args:
        out: (layers, n, heads, head_dim); overwritten.
        whole: (layers, slab_rows, heads, head_dim) int8.
        scales: (layers, slab_rows, heads).
        channels: (layers, heads, head_dim); None: values.
        turn: cos and sin, each (n, rotary_dim / 2) float32; None: no rotation.
    """
    most = torch.finfo(out.dtype).max
    numbers = whole[:, rows].float() * scales[:, rows].float()[..., None]
    if channels is not None:
        numbers = numbers * channels.float()[:, None]
    if turn is None:
        out.copy_(numbers.clamp(-most, most))
        return
    half = turn[0].shape[-1]
    turned = turned_pairs(pairs_of(numbers, half, is_neox), *turn)
    pairs_of(out, half, is_neox).copy_(turned.clamp(-most, most))
    if 2 * half < out.shape[-1]:
        out[..., 2 * half :] = numbers[..., 2 * half :].clamp(-most, most)


@dataclass
class CodedGroup(LayerGroup):
    """`keys` and `values` are codes; the scales lie beside them."""

    key_scales: torch.Tensor = field(init=False)  # (layers, rows, heads) bfloat16
    value_scales: torch.Tensor = field(init=False)
    channels: torch.Tensor = field(init=False)  # (layers, heads, head_dim); ones until the first tokens come
    decode: Decode = decode_rows
    _first: bool = True
    _captured: list[torch.Tensor] = field(default_factory=list)  # this step's keys and values, (layers, n, heads, dim)

    def __post_init__(self) -> None:
        self.key_scales = torch.zeros(self.keys.shape[:-1], dtype=SCALE_DTYPE, device=self.keys.device)
        self.value_scales = torch.zeros_like(self.key_scales)
        layers, _, heads, head_dim = self.keys.shape
        self.channels = torch.ones((layers, heads, head_dim), dtype=SCALE_DTYPE, device=self.keys.device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that the rows consist of; each (layers, rows, ...)."""
        return [self.keys, self.key_scales, self.values, self.value_scales]

    def inject(self, gather: Gather, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Write `rows` (n,) into the paged cache at `slots` (n,), keys rotated to `positions` (n,)."""
        keys, values = self._decoded(self.decode if rows.shape[0] > 1 else decode_rows, rows, positions)
        for number, (layer, write) in enumerate(zip(self.layers, self.writes, strict=True)):
            write(layer.attention, keys[number], values[number], layer.attention.kv_cache, slots)

    def _decoded(
        self, decode: Decode, rows: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.scratch(rows.shape[0])
        turn = None if self.table is None else self.table.at(positions)
        is_neox = self.table is None or self.table.is_neox
        decode(keys, self.keys, self.key_scales, rows, self.channels, turn, is_neox)
        decode(values, self.values, self.value_scales, rows, None, None, True)
        return keys, values

    def scratch(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the keys and values of all layers, each (layers, count, heads, head_dim)."""
        layers, _, heads, head_dim = self.keys.shape
        shape = (layers, count, heads, head_dim)
        keys, values = (
            flat.view(-1)[: math.prod(shape)].view(shape) for flat in (self.scratch_keys, self.scratch_values)
        )
        return keys, values

    def warm(self, gather: Gather, rows: torch.Tensor) -> None:
        """Compile what `inject` calls for `rows` (n,)."""
        self.decode = compiled_decode() if self.decode is decode_rows else self.decode
        try:
            self._decoded(self.decode, rows, rows)
        except Exception:
            self.decode = decode_rows
            raise

    def capture(self, place: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take what layer number `place` computed for `rows` (n,), each (n, heads, head_dim), keys still rotated.

        Kept as numbers until `unrotate`: codes are of position-free keys.
        """
        layers, _, heads, head_dim = self.keys.shape
        shape = (layers, rows.shape[0], heads, head_dim)
        if not self._captured or self._captured[0].shape != shape:
            self._captured = [torch.zeros(shape, dtype=keys.dtype, device=keys.device) for _ in ("keys", "values")]
        self._captured[0][place], self._captured[1][place] = keys, values

    def unrotate(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        """Make codes of what was captured at `positions`."""
        if self._captured:
            (keys, values), self._captured = self._captured, []
            self.write(rows, self.position_free(keys, positions), values)

    def read(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Copies of the keys and the values of `rows` (n,), each (layers, n, heads, head_dim) in the model's dtype."""
        stored = [tensor.index_select(1, rows) for tensor in self.tensors]
        head_dim, dtype = self.keys.shape[-1], self.scratch_keys.dtype
        keys, values = Codes(*stored[:2]), Codes(*stored[2:])
        return [
            dequantise(keys, CODEC, head_dim, dtype, self.channels),
            dequantise(values, CODEC, head_dim, dtype),
        ]

    def write(self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """The inverse of `read`, as near as codes are. What is not finite stays so."""
        if self._first:
            self.channels, self._first = channels_of(keys), False
        of_keys, of_values = nearest(keys, CODEC, self.channels), nearest(values, CODEC)
        parts = (of_keys.whole, of_keys.scales, of_values.whole, of_values.scales)
        for tensor, part in zip(self.tensors, parts, strict=True):
            tensor.index_copy_(1, rows, part)


def compiled_decode() -> Decode:
    """`decode_rows`, compiled at its first call."""
    return compiled_for_any_rows(
        decode_rows,
        lambda out, _whole, _scales, rows, _channels, turn, _is_neox: (
            (out, 1),
            (rows, 0),
            *((part, 0) for part in turn or ()),
        ),
    )
