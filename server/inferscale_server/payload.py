"""The payload of a KV file: keys and values as bytes and back, plain or as codes.

For each group of layers keys, then values. Plain: (layers, n, heads, head_dim) in the model's dtype. As codes: of keys
the channels (layers, heads, head_dim), of both the scales (layers, n, heads), then the codes. The channels are the
chunk's own.

Knows tensors and their bytes; refuses to know files, rows and devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import cycle

import torch

from inferscale_server.codes import SCALE_DTYPE, Codes, channels_of, dequantise, quantise
from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import GroupShape, KvCodec, KvLayout, code_bytes


def packed(arrays: Sequence[torch.Tensor], codec: KvCodec) -> list[memoryview]:
    """Bytes of keys, values, keys, values …, each (layers, n, heads, head_dim), on any device.

    Raises KvFileError when codes are wanted of what is not finite.
    """
    return [_bytes_of(part) for array, keys in zip(arrays, cycle((True, False))) for part in _parts(array, codec, keys)]


def _parts(array: torch.Tensor, codec: KvCodec, keys: bool) -> list[torch.Tensor]:
    if codec == "none":
        return [array]
    channels = channels_of(array) if keys else None
    codes = quantise(array, codec, channels)
    return [codes.scales, codes.whole] if channels is None else [channels, codes.scales, codes.whole]


def unpacked(payload: bytearray, layout: KvLayout, tokens: int) -> Iterator[torch.Tensor]:
    """The inverse: keys, values, keys, values …, in the layout's dtype. Raises KvFileError for what is not finite."""
    assert len(payload) == layout.payload_bytes(tokens), f"{len(payload)} bytes for {tokens} tokens of {layout}"
    cursor = _Cursor(payload)
    for group in layout.groups:
        for keys in (True, False):
            numbers = _numbers(cursor, group, layout, tokens, keys)
            _check_finite(numbers)
            yield numbers


def _numbers(cursor: _Cursor, group: GroupShape, layout: KvLayout, tokens: int, keys: bool) -> torch.Tensor:
    dtype = getattr(torch, layout.dtype)
    shape = (group.layers, tokens, group.heads)
    if layout.codec == "none":
        return cursor.take((*shape, group.head_dim), dtype)
    channels = cursor.take((group.layers, group.heads, group.head_dim), SCALE_DTYPE) if keys else None
    scales = cursor.take(shape, SCALE_DTYPE)
    for factors in (scales, channels):  # of infinite ones, numbers would be made that are finite
        if factors is not None:
            _check_finite(factors)
    codes = Codes(cursor.take((*shape, code_bytes(layout.codec, group.head_dim)), torch.int8), scales)
    return dequantise(codes, layout.codec, group.head_dim, dtype, channels)


def _check_finite(numbers: torch.Tensor) -> None:
    if not bool(torch.isfinite(numbers).all()):
        raise KvFileError("not_finite", "a checksum holds, but these are no keys and values")


class _Cursor:
    """Arrays of a payload, one behind the other, without a copy."""

    def __init__(self, payload: bytearray) -> None:
        self._payload, self._start = payload, 0

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The next array."""
        count, start = math.prod(shape), self._start
        self._start += count * dtype.itemsize
        # Scales may stand at odd addresses behind int4's codes of an odd head; torch reads those only as bytes.
        part = self._payload if start % dtype.itemsize == 0 else self._payload[start : self._start]
        return torch.frombuffer(part, dtype=dtype, count=count, offset=start if part is self._payload else 0).view(
            shape
        )


def _bytes_of(array: torch.Tensor) -> memoryview:
    return array.cpu().contiguous().view(torch.uint8).numpy().data.cast("B")
