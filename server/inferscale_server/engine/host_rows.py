"""The host tier's arrays in one worker: copies of slab rows in host memory, pinned where a GPU copies from it.

Knows rows; refuses to know what they mean (the host tier's catalog in the API process does).
"""

from __future__ import annotations

from itertools import cycle
from typing import Protocol

import torch

from inferscale_server.codes import SCALE_DTYPE, Codes, channels_of, dequantise, quantise
from inferscale_server.engine.slab import Slab
from inferscale_server.kv_codec import KvCodec, code_bytes


class HostArray(Protocol):
    """Copies of the rows of one slab array, (layers, slab_rows, heads, head_dim)."""

    def put(self, host_rows: torch.Tensor, numbers: torch.Tensor) -> None:
        """Keep numbers (layers, n, heads, head_dim), on any device, in rows (n,)."""

    def get(self, host_rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What was kept, on this device."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where it lies; each (layers, rows, ...)."""


class PlainArray:
    """Copies as they are."""

    def __init__(self, source: torch.Tensor, rows: int) -> None:
        self.numbers = _room((source.shape[0], rows, *source.shape[2:]), source.dtype, source.is_cuda)

    def put(self, host_rows: torch.Tensor, numbers: torch.Tensor) -> None:
        """Keep numbers (layers, n, heads, head_dim), on any device, in rows (n,)."""
        self.numbers.index_copy_(1, host_rows, numbers.to("cpu"))

    def get(self, host_rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What was kept, on this device."""
        return self.numbers.index_select(1, host_rows).to(device)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where it lies; each (layers, rows, ...)."""
        return [self.numbers]


class CodedArray:
    """Copies as codes. Codes are made and read on the slab's device, so that few bytes cross between the memories.

    Keys' channels are those of the first chunk that is kept, normally the default header, as long as the server runs:
    on the embedded model the int8 error is 0.45 % then, and 0.35 % with each chunk's own, which would need a place
    beside the rows.
    """

    def __init__(self, source: torch.Tensor, rows: int, codec: KvCodec, keys: bool) -> None:
        layers, _, heads, head_dim = source.shape
        self._codec, self._dtype, self._head_dim, self._keys = codec, source.dtype, head_dim, keys
        self.whole = _room((layers, rows, heads, code_bytes(codec, head_dim)), torch.int8, source.is_cuda)
        self.scales = _room((layers, rows, heads), SCALE_DTYPE, source.is_cuda)
        self._channels: torch.Tensor | None = None  # (layers, heads, head_dim), on the slab's device

    def put(self, host_rows: torch.Tensor, numbers: torch.Tensor) -> None:
        """Keep numbers (layers, n, heads, head_dim), on any device, in rows (n,). Raises KvFileError: not finite."""
        if self._keys and self._channels is None:
            self._channels = channels_of(numbers)
        codes = quantise(numbers, self._codec, self._channels)
        self.whole.index_copy_(1, host_rows, codes.whole.to("cpu"))
        self.scales.index_copy_(1, host_rows, codes.scales.to("cpu"))

    def get(self, host_rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What was kept, as near as codes are, on this device."""
        whole, scales = (array.index_select(1, host_rows).to(device) for array in (self.whole, self.scales))
        return dequantise(Codes(whole, scales), self._codec, self._head_dim, self._dtype, self._channels)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where it lies; each (layers, rows, ...)."""
        return [self.whole, self.scales]


class HostRows:
    """Room for `rows` tokens. Rows bear the stamp of the copy that they hold; 0: none that is whole."""

    def __init__(self, slab: Slab, rows: int, codec: KvCodec = "none") -> None:
        self.rows = rows
        self.stamps = torch.zeros(rows, dtype=torch.int64)
        self._slab = slab
        if slab.codec != "none":
            codec = "none"  # they are codes already, and are copied as they are
        self._arrays = [_array(*source, rows, codec) for source in zip(slab.tensors, cycle((True, False)))]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that lies in host memory; each (layers, rows, ...)."""
        return [tensor for array in self._arrays for tensor in array.tensors]

    def take(self, rows: torch.Tensor, source_stamp: int, host_rows: torch.Tensor, stamp: int) -> bool:
        """Copy slab `rows` (n,) to `host_rows` (n,); False when the slab holds another encoding there by now."""
        if not self._slab.holds(rows, source_stamp):
            return False
        self.stamps[host_rows] = 0
        for mine, theirs in zip(self._arrays, self._slab.tensors, strict=True):
            mine.put(host_rows, theirs.index_select(1, rows))
        self.stamps[host_rows] = stamp
        return True

    def give(self, host_rows: torch.Tensor, source_stamp: int, rows: torch.Tensor, stamp: int) -> bool:
        """Copy `host_rows` (n,) to slab `rows` (n,); False when another copy is there by now."""
        if not bool((self.stamps[host_rows] == source_stamp).all()):
            return False
        self._slab.stamps[:, rows] = 0
        for mine, theirs in zip(self._arrays, self._slab.tensors, strict=True):
            theirs.index_copy_(1, rows, mine.get(host_rows, theirs.device))
        self._slab.stamps[:, rows] = stamp
        return True

    def wipe(self, host_rows: torch.Tensor) -> None:
        """Overwrite rows (n,) with zeros."""
        self.stamps[host_rows] = 0
        for tensor in self.tensors:
            tensor[:, host_rows] = 0


def _array(source: torch.Tensor, keys: bool, rows: int, codec: KvCodec) -> HostArray:
    return PlainArray(source, rows) if codec == "none" else CodedArray(source, rows, codec, keys)


def _room(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, pin_memory=pinned)
