"""Keys and values as small whole numbers: int8 and int4 codes, and the scales that make numbers of them again.

A number is its code times the scale of its token and head; a key also times the scale of its channel. Keys have
channels that are large in every token (KIVI, arXiv 2402.02750, section 3.2; it holds before rotation, which would mix
the two channels of a pair), so they need a scale for each channel. If that were the only one, a row would be worth
nothing without the tokens that it was scaled with, and all of them would have to be moved together. So a channel's
scale is only its share of its head's largest, fixed for a file or for a tier's arrays, and the size itself lies with
the token: no code is ever clipped, whatever comes later, and each row can be copied, moved and wiped alone.

Knows arithmetic; refuses to know rows, files and tiers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvCodec, code_bytes

LEVELS = {"int8": 127, "int4": 7}
"""The largest code; the smallest is its negative."""
FLOOR = 1 / 64
"""The least share of a channel: one that was zero when the shares were taken may be large in a later token, and must
not set that token's scale."""
SCALE_DTYPE = torch.bfloat16
"""The range of float32 in two bytes. Codes are taken with the rounded scale, so its rounding adds no error."""
TINIEST = torch.finfo(SCALE_DTYPE).tiny


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of n tokens, and what they are multiplied with."""

    whole: torch.Tensor  # (layers, n, heads, code_bytes) int8; int4 has two codes in a byte
    scales: torch.Tensor  # (layers, n, heads) bfloat16


def channels_of(keys: torch.Tensor) -> torch.Tensor:
    """The share of each channel of keys (layers, n, heads, head_dim): (layers, heads, head_dim) bfloat16, at most 1.

    Numbers that are not finite do not count.
    """
    largest = keys.float().abs().nan_to_num_(0.0, 0.0).amax(1)
    return (largest / largest.amax(-1, keepdim=True).clamp_min(TINIEST)).clamp(FLOOR, 1).to(SCALE_DTYPE)


def quantise(numbers: torch.Tensor, codec: KvCodec, channels: torch.Tensor | None = None) -> Codes:
    """Nearest codes of keys or values (layers, n, heads, head_dim), off by at most half of scale times share.

    Args:
        channels: (layers, heads, head_dim), from `channels_of`; None: all are alike.

    Raises KvFileError when a number is not finite.
    """
    codes = nearest(numbers, codec, channels)
    if not bool(torch.isfinite(codes.scales).all()):
        raise KvFileError("not_finite", "these are no keys and values")
    return codes


def nearest(numbers: torch.Tensor, codec: KvCodec, channels: torch.Tensor | None = None) -> Codes:
    """`quantise` that raises nothing: where a number is not finite, the scale of its token and head is not."""
    scaled = numbers.float() if channels is None else numbers.float() / channels.float()[:, None]
    largest = scaled.abs().amax(-1)
    scales = (largest / LEVELS[codec]).to(SCALE_DTYPE).clamp_min(TINIEST)
    whole = (scaled / scales.float()[..., None]).round_().to(torch.int8)
    return Codes(_paired(whole) if codec == "int4" else whole, scales)


def dequantise(
    codes: Codes, codec: KvCodec, head_dim: int, dtype: torch.dtype, channels: torch.Tensor | None = None
) -> torch.Tensor:
    """The inverse, as far as there is one: (layers, n, heads, head_dim) of `dtype`, computed in float32.

    None is infinite. What had no finite scale is not a number.
    """
    assert codes.whole.shape[-1] == code_bytes(codec, head_dim), f"{codes.whole.shape} for {head_dim} of {codec}"
    whole = _single(codes.whole, head_dim) if codec == "int4" else codes.whole
    numbers = whole.float().mul_(codes.scales.float()[..., None])
    if channels is not None:
        numbers.mul_(channels.float()[:, None])
    most = torch.finfo(dtype).max  # rounding may carry the largest numbers beyond it
    return numbers.clamp_(-most, most).to(dtype)


def _paired(whole: torch.Tensor) -> torch.Tensor:
    """Two codes a byte: the first half of the head in the low four bits, the second in the high ones."""
    half = (whole.shape[-1] + 1) // 2
    low, high = whole[..., :half], pad(whole[..., half:], (0, 2 * half - whole.shape[-1]))
    return (low & 15) | (high << 4)


def _single(paired: torch.Tensor, head_dim: int) -> torch.Tensor:
    """The inverse; a shift to the right keeps the sign."""
    return torch.cat(((paired << 4) >> 4, paired >> 4), dim=-1)[..., :head_dim]
