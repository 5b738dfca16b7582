"""The payload of a KV file: as long as its layout says, and the same arrays again."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import CODECS, DTYPE_BYTES, GroupShape, KvCodec, KvLayout
from inferscale_server.payload import packed, unpacked

LAYOUT = KvLayout("float32", (GroupShape(3, 2, 4), GroupShape(1, 1, 5)), 0, 1)
TOKENS = 7


def arrays_of(layout: KvLayout, tokens: int = TOKENS) -> list[torch.Tensor]:
    """Random keys, values, keys, values."""
    dice, dtype = torch.Generator().manual_seed(5), getattr(torch, layout.dtype)
    shapes = [(group.layers, tokens, group.heads, group.head_dim) for group in layout.groups for _ in ("key", "value")]
    return [torch.randn(shape, generator=dice).to(dtype) for shape in shapes]


def bytes_of(layout: KvLayout, tokens: int = TOKENS) -> bytearray:
    return bytearray(b"".join(packed(arrays_of(layout, tokens), layout.codec)))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_a_payload_is_as_long_as_its_layout_says_and_holds_the_arrays(codec: KvCodec, dtype: str, tokens: int) -> None:
    layout = dataclasses.replace(LAYOUT, codec=codec, dtype=dtype)
    payload = bytes_of(layout, tokens)
    assert len(payload) == layout.payload_bytes(tokens)
    for one, other in zip(arrays_of(layout, tokens), unpacked(payload, layout, tokens), strict=True):
        assert other.dtype == one.dtype and other.shape == one.shape
        assert float((one.float() - other.float()).abs().max()) <= {"none": 0.0, "int8": 0.03, "int4": 0.45}[codec]


def test_a_file_of_thirty_tokens_of_the_embedded_model_is_half_or_a_third_as_long() -> None:
    shape = KvLayout("bfloat16", (GroupShape(30, 3, 64),), 0, 1)
    plain, int8, int4 = (dataclasses.replace(shape, codec=codec).payload_bytes(30) for codec in CODECS)
    assert 1.85 < plain / int8 < 2 and 3.3 < plain / int4 < 4


@pytest.mark.parametrize("codec", ["int8", "int4"])
@pytest.mark.parametrize("scale", [b"\xff\xff", b"\x80\x7f"], ids=["no number", "infinite"])
def test_scales_that_are_not_finite_give_no_numbers(codec: KvCodec, scale: bytes) -> None:
    layout = dataclasses.replace(LAYOUT, codec=codec)
    with pytest.raises(KvFileError, match="not_finite"):
        list(unpacked(bytearray(scale * (layout.payload_bytes(2) // 2 + 1))[: layout.payload_bytes(2)], layout, 2))


@pytest.mark.parametrize("codec", CODECS)
def test_a_payload_of_another_length_is_a_programmers_error(codec: KvCodec) -> None:
    layout = dataclasses.replace(LAYOUT, codec=codec)
    with pytest.raises(AssertionError):
        list(unpacked(bytes_of(layout) + b"x", layout, TOKENS))
