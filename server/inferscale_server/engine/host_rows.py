"""The host tier's arrays in one worker: copies of slab rows in host memory, pinned where a GPU copies from it.

Knows rows; refuses to know what they mean (the host tier's catalog in the API process does). What crosses between the
memories is gathered on the slab's device first and lies together on both sides, extent by extent: only so is pinned
memory read and written by the GPU itself, without a second copy in memory that is not pinned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Protocol

import torch

from inferscale_server.codes import SCALE_DTYPE, Codes, channels_of, dequantise, quantise
from inferscale_server.command import Extent
from inferscale_server.engine.slab import Slab
from inferscale_server.kv_codec import KvCodec, code_bytes


class HostArray(Protocol):
    """Copies of the rows of one slab array, (layers, slab_rows, heads, head_dim)."""

    def put(self, extents: Sequence[Extent], numbers: torch.Tensor) -> None:
        """Keep numbers (layers, n, heads, head_dim), on any device, in these n rows; begun when this returns."""

    def get(self, extents: Sequence[Extent], device: torch.device) -> torch.Tensor:
        """What was kept, on this device; begun when this returns."""

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where it lies; each (layers, rows, ...)."""


class RowsFirst:
    """Room for (layers, rows, ...) that lies row by row, so that one copy moves all layers of an extent."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> None:
        layers, rows, *rest = shape
        self._rows = torch.zeros((rows, layers, *rest), dtype=dtype, pin_memory=pinned)

    def put(self, extents: Sequence[Extent], numbers: torch.Tensor) -> None:
        """Keep numbers (layers, n, ...), on any device, in these n rows; begun when this returns."""
        source = numbers.transpose(0, 1).contiguous()
        for mine, theirs in self._pairs(extents, source):
            mine.copy_(theirs, non_blocking=True)

    def get(self, extents: Sequence[Extent], device: torch.device) -> torch.Tensor:
        """These n rows as (layers, n, ...) on this device; begun when this returns."""
        count = sum(extent.length for extent in extents)
        target = torch.empty((count, *self._rows.shape[1:]), dtype=self._rows.dtype, device=device)
        for mine, theirs in self._pairs(extents, target):
            theirs.copy_(mine, non_blocking=True)
        return target.transpose(0, 1)

    @property
    def tensor(self) -> torch.Tensor:
        """All of it, (layers, rows, ...)."""
        return self._rows.transpose(0, 1)

    def _pairs(self, extents: Sequence[Extent], other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        parts = torch.split(other, [extent.length for extent in extents])
        return ((self._rows[rows], part) for rows, part in zip(_slices(extents), parts, strict=True))


class PlainArray:
    """Copies as they are."""

    def __init__(self, source: torch.Tensor, rows: int) -> None:
        self._numbers = RowsFirst((source.shape[0], rows, *source.shape[2:]), source.dtype, source.is_cuda)
        self.put, self.get = self._numbers.put, self._numbers.get

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where it lies; each (layers, rows, ...)."""
        return [self._numbers.tensor]


class CodedArray:
    """Copies as codes. Codes are made and read on the slab's device, so that few bytes cross between the memories.

    Keys' channels are those of the first chunk that is kept, normally the default header, as long as the server runs:
    on the embedded model the int8 error is 0.45 % then, and 0.35 % with each chunk's own, which would need a place
    beside the rows.
    """

    def __init__(self, source: torch.Tensor, rows: int, codec: KvCodec, keys: bool) -> None:
        layers, _, heads, head_dim = source.shape
        self._codec, self._dtype, self._head_dim, self._keys = codec, source.dtype, head_dim, keys
        self._whole = RowsFirst((layers, rows, heads, code_bytes(codec, head_dim)), torch.int8, source.is_cuda)
        self._scales = RowsFirst((layers, rows, heads), SCALE_DTYPE, source.is_cuda)
        self._channels: torch.Tensor | None = None  # (layers, heads, head_dim), on the slab's device

    def put(self, extents: Sequence[Extent], numbers: torch.Tensor) -> None:
        """Keep numbers (layers, n, heads, head_dim), on any device, in these n rows; begun when this returns.

        Raises KvFileError: not finite.
        """
        if self._keys and self._channels is None:
            self._channels = channels_of(numbers)
        codes = quantise(numbers, self._codec, self._channels)
        self._whole.put(extents, codes.whole)
        self._scales.put(extents, codes.scales)

    def get(self, extents: Sequence[Extent], device: torch.device) -> torch.Tensor:
        """What was kept, as near as codes are, on this device; begun when this returns."""
        codes = Codes(self._whole.get(extents, device), self._scales.get(extents, device))
        return dequantise(codes, self._codec, self._head_dim, self._dtype, self._channels)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Where it lies; each (layers, rows, ...)."""
        return [self._whole.tensor, self._scales.tensor]


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

    def take(self, rows: torch.Tensor, source_stamp: int, host_rows: Sequence[Extent], stamp: int) -> bool:
        """Copy slab `rows` (n,) to `host_rows`; False when the slab holds another encoding there by now."""
        if not self._slab.holds(rows, source_stamp):
            return False
        self._mark(host_rows, 0)
        try:
            for mine, theirs in zip(self._arrays, self._slab.tensors, strict=True):
                mine.put(host_rows, theirs.index_select(1, rows))
        finally:
            self._arrived()
        self._mark(host_rows, stamp)
        return True

    def give(self, host_rows: Sequence[Extent], source_stamp: int, rows: torch.Tensor, stamp: int) -> bool:
        """Copy `host_rows` to slab `rows` (n,); False when another copy is there by now."""
        if not all(bool((self.stamps[part] == source_stamp).all()) for part in _slices(host_rows)):
            return False
        self._slab.stamps[:, rows] = 0
        try:
            for mine, theirs in zip(self._arrays, self._slab.tensors, strict=True):
                theirs.index_copy_(1, rows, mine.get(host_rows, theirs.device))
        finally:
            self._arrived()
        self._slab.stamps[:, rows] = stamp
        return True

    def wipe(self, host_rows: Sequence[Extent]) -> None:
        """Overwrite rows with zeros."""
        self._mark(host_rows, 0)
        for part in _slices(host_rows):
            for tensor in self.tensors:
                tensor[:, part] = 0

    def _mark(self, host_rows: Sequence[Extent], stamp: int) -> None:
        for part in _slices(host_rows):
            self.stamps[part] = stamp

    def _arrived(self) -> None:
        """Once for all copies of a chunk: whoever reads or wipes host rows after this meets none under way."""
        if self._slab.device.type == "cuda":
            torch.cuda.current_stream(self._slab.device).synchronize()


def _array(source: torch.Tensor, keys: bool, rows: int, codec: KvCodec) -> HostArray:
    return PlainArray(source, rows) if codec == "none" else CodedArray(source, rows, codec, keys)


def _slices(extents: Sequence[Extent]) -> Iterator[slice]:
    return (slice(extent.row, extent.row + extent.length) for extent in extents)
