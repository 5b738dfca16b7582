"""Codes of keys and values: as near as half a step, each row alone, and equal to a slow twin's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from inferscale_server.codes import FLOOR, LEVELS, TINIEST, Codes, channels_of, dequantise, nearest, quantise
from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvCodec

BOTH: tuple[KvCodec, ...] = ("int8", "int4")
numbers = arrays.arrays(
    np.float32,
    arrays.array_shapes(min_dims=4, max_dims=4, max_side=5),
    elements=st.floats(-(2.0**60), 2.0**60, width=32),
)


def rounded(number: float) -> np.float32:
    """To bfloat16 and back."""
    return np.float32(torch.tensor(number, dtype=torch.float32).bfloat16().float().item())


def twin(kept: np.ndarray, codec: KvCodec, channels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """What `quantise` and `dequantise` give, number by number in float32: numbers, and the steps of their codes."""
    back, steps = np.zeros_like(kept), np.zeros_like(kept)
    layers, tokens, heads, _ = kept.shape
    for at in np.ndindex(layers, tokens, heads):
        share = np.ones(kept.shape[-1], np.float32) if channels is None else channels[at[0], at[2]]
        scaled = [np.float32(number / part) for number, part in zip(kept[at], share, strict=True)]
        largest = max(abs(number) for number in scaled)
        scale = max(rounded(float(np.float32(largest / np.float32(LEVELS[codec])))), np.float32(TINIEST))
        for place, number in enumerate(scaled):
            code = np.float32(round(float(np.float32(number / scale))))
            back[(*at, place)] = np.float32(np.float32(code * scale) * share[place])
            steps[(*at, place)] = np.float64(scale) * np.float64(share[place])
    return back, steps


def through(kept: torch.Tensor, codec: KvCodec, channels: torch.Tensor | None = None) -> torch.Tensor:
    """To codes and back, in float32."""
    return dequantise(quantise(kept, codec, channels), codec, kept.shape[-1], torch.float32, channels)


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("keys", [True, False])
@given(kept=numbers)
def test_codes_are_the_twins_and_off_by_half_a_step_at_most(codec: KvCodec, keys: bool, kept: np.ndarray) -> None:
    channels = channels_of(torch.from_numpy(kept)) if keys else None
    back = through(torch.from_numpy(kept), codec, channels).numpy()
    slow, steps = twin(kept, codec, None if channels is None else channels.float().numpy())
    assert np.array_equal(back, slow)
    assert (np.abs(back.astype(np.float64) - kept) <= steps * 0.5 * (1 + 1e-4)).all()


@pytest.mark.parametrize("codec", BOTH)
@given(kept=numbers, other=st.integers(0, 2**32 - 1))
def test_a_row_has_the_same_codes_alone_and_among_others(codec: KvCodec, kept: np.ndarray, other: int) -> None:
    rows = torch.from_numpy(kept)
    channels = channels_of(torch.from_numpy(np.random.default_rng(other).normal(size=kept.shape).astype(np.float32)))
    order = torch.randperm(rows.shape[1], generator=torch.Generator().manual_seed(other))
    together, moved = quantise(rows, codec, channels), quantise(rows[:, order], codec, channels)
    assert torch.equal(together.whole[:, order], moved.whole) and torch.equal(together.scales[:, order], moved.scales)
    alone = quantise(rows[:, :1], codec, channels)
    assert torch.equal(together.whole[:, :1], alone.whole) and torch.equal(together.scales[:, :1], alone.scales)


@given(kept=numbers)
def test_a_channels_share_is_its_largest_of_its_heads_largest(kept: np.ndarray) -> None:
    shares = channels_of(torch.from_numpy(kept)).float().numpy()
    assert shares.shape == (kept.shape[0], *kept.shape[2:])
    for layer, head in np.ndindex(shares.shape[:2]):
        largest = np.abs(kept[layer, :, head]).max(0)
        top = max(float(largest.max()), TINIEST)
        for channel, size in enumerate(largest):
            assert math.isclose(shares[layer, head, channel], max(float(size) / top, FLOOR), rel_tol=2**-8)


@pytest.mark.parametrize("codec", BOTH)
def test_a_large_channel_costs_the_others_nothing_only_with_channels(codec: KvCodec) -> None:
    keys = torch.randn((2, 40, 3, 16), generator=torch.Generator().manual_seed(1))
    keys[..., 5] *= 30
    others = [channel for channel in range(16) if channel != 5]
    with_channels, without = (
        (through(keys, codec, how) - keys)[..., others].norm() for how in (channels_of(keys), None)
    )
    assert with_channels < without / 5


@pytest.mark.parametrize("codec", BOTH)
def test_a_channel_that_was_zero_at_first_is_kept_as_well_as_the_floor_allows(codec: KvCodec) -> None:
    """The channels are fixed for the life of a tier's arrays: what comes later is coarser, and never clipped."""
    first = torch.randn((1, 8, 1, 8), generator=torch.Generator().manual_seed(2))
    first[..., 3] = 0
    later = first.clone()
    later[..., 3] = 1
    channels = channels_of(first)
    step = quantise(later, codec, channels).scales.float()[..., None] * channels.float()[:, None]
    assert ((through(later, codec, channels) - later).abs() <= step * 0.5001).all()


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("keys", [True, False])
def test_what_is_not_finite_has_no_codes(codec: KvCodec, bad: float, keys: bool) -> None:
    kept = torch.ones((1, 3, 2, 4))
    kept[0, 1, 1, 2] = bad
    with pytest.raises(KvFileError, match="not_finite"):
        quantise(kept, codec, channels_of(kept) if keys else None)


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_zeros_stay_zeros_in_the_models_dtype(codec: KvCodec, dtype: torch.dtype) -> None:
    zeros = torch.zeros((1, 2, 1, 3), dtype=dtype)
    channels = channels_of(zeros)
    back = dequantise(quantise(zeros, codec, channels), codec, 3, dtype, channels)
    assert back.dtype == dtype and torch.equal(back, zeros)


@pytest.mark.parametrize("codec", BOTH)
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_largest_numbers_of_a_dtype_come_back_finite(codec: KvCodec, keys: bool, dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    large = torch.tensor([1, -1, 0.9985, 0.993, -0.98, 0.5], dtype=torch.float64).mul(most).to(dtype)
    kept = large[:, None].repeat(1, 4)[None, :, None]
    channels = channels_of(kept) if keys else None
    back = dequantise(quantise(kept, codec, channels), codec, 4, dtype, channels)
    assert bool(torch.isfinite(back).all())
    assert ((back.double() - kept.double()).abs() <= most / LEVELS[codec]).all()


@pytest.mark.parametrize("codec", BOTH)
def test_what_had_no_finite_scale_does_not_come_back_as_numbers(codec: KvCodec) -> None:
    kept = torch.ones((1, 2, 1, 4))
    kept[0, 1, 0, 2] = math.inf
    back = dequantise(nearest(kept, codec), codec, 4, torch.float16)
    assert bool(back[0, 0].isfinite().all()) and not bool(back[0, 1].isfinite().any())


@pytest.mark.parametrize("head_dim", [1, 2, 5, 8])
def test_two_codes_of_four_bits_share_a_byte(head_dim: int) -> None:
    """Every pair of codes, of even and odd heads, comes back."""
    codes = torch.arange(-7, 8)
    kept = torch.stack((codes, codes.flip(0)), -1).repeat(1, head_dim)[:, :head_dim].float()[None, :, None]
    kept[..., 0] = torch.where(kept[..., 0] == 0, 7, kept[..., 0].sign() * 7)  # so that the scale is 1
    quantised = quantise(kept, "int4")
    assert quantised.whole.shape[-1] == (head_dim + 1) // 2 and bool((quantised.scales == 1).all())
    assert torch.equal(dequantise(quantised, "int4", head_dim, torch.float32), kept)


def test_codes_of_another_head_size_are_a_programmers_error() -> None:
    codes = Codes(torch.zeros((1, 1, 1, 4), dtype=torch.int8), torch.ones((1, 1, 1)))
    with pytest.raises(AssertionError, match="for 6 of int8"):
        dequantise(codes, "int8", 6, torch.float32)
