"""The Triton kernel in Triton's interpreter on a CPU, against the portable path; and the probe that lets it be used.

Nothing here has run on a GPU: bench/gpu_kernel.py does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferscale_server.engine import paged_probe
from inferscale_server.engine.slab import Slab
from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.rotary import RotaryTable, gather_rotated, rotate

from .attention import FakeRotary, rotary

pytest.importorskip("triton")
MODULE = "inferscale_server.engine.paged_kernel"
BLOCKS, BLOCK_SIZE = 20, 16


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernel's module, compiled for the interpreter; the next import gets a fresh one."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    sys.modules.pop(MODULE, None)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


@dataclass
class PagedImpl:
    """A backend that keeps keys and values side by side: (blocks, heads, block_size, 2 * head_dim)."""

    shift: int = 0  # a fault: everything lands so many slots further

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slots: torch.Tensor
    ) -> None:
        keys, values = kv_cache.transpose(1, 2).split(key.shape[-1], dim=-1)
        for number, slot in enumerate(slots.tolist()):
            block, place = divmod(slot + self.shift, BLOCK_SIZE)
            keys[block, place], values[block, place] = key[number], value[number]


@dataclass
class PagedAttention:
    kv_cache: torch.Tensor
    impl: PagedImpl = field(default_factory=PagedImpl)


def slab_of(
    turns: FakeRotary | None, dtype: torch.dtype = torch.float32, shift: int = 0, heads: int = 2, head_dim: int = 16
) -> Slab:
    layers = [
        TappedLayer(
            f"layer {number}",
            PagedAttention(  # type: ignore[arg-type]
                torch.zeros(BLOCKS, heads, BLOCK_SIZE, 2 * head_dim, dtype=dtype), PagedImpl(shift)
            ),
            turns,  # type: ignore[arg-type]
            heads,
            head_dim,
        )
        for number in range(2)
    ]
    return Slab(layers, 80, dtype, torch.device("cpu"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(0, 40),
    heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 12, 16]),
    half=st.sampled_from([0, 2, 4]),
    neox=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 99),
)
def test_the_kernel_writes_what_gather_and_rotation_give(
    kernel: ModuleType, count: int, heads: int, head_dim: int, half: int, neox: bool, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    keys, values = (torch.randn(3, 50, heads, head_dim).to(dtype) for _ in range(2))
    caches = [torch.zeros(BLOCKS, heads, BLOCK_SIZE, 2 * head_dim, dtype=dtype) for _ in range(3)]
    views = [paged_probe.side_by_side(cache, head_dim) for cache in caches]
    rows, slots = torch.randint(0, 50, (count,)), torch.randperm(BLOCKS * BLOCK_SIZE)[:count]
    angles = torch.rand(count, max(half, 1)) * 6
    turn = (angles.cos(), angles.sin()) if half else None
    kernel.inject_paged(keys, values, kernel.paged_layers(views), rows, slots, turn, neox)
    wanted = keys[:, rows] if turn is None else rotate(keys[:, rows], *turn, neox)
    untouched = torch.ones(BLOCKS * BLOCK_SIZE, dtype=torch.bool)
    untouched[slots] = False
    step = torch.finfo(dtype).eps
    for number, (key_cache, value_cache) in enumerate(views):
        got = key_cache[slots // BLOCK_SIZE, slots % BLOCK_SIZE]
        assert torch.allclose(got.float(), wanted[number].float(), rtol=2 * step, atol=2 * step)
        assert torch.equal(value_cache[slots // BLOCK_SIZE, slots % BLOCK_SIZE], values[number, rows])
        for view in (key_cache, value_cache):
            assert not view.reshape(BLOCKS * BLOCK_SIZE, heads, head_dim)[untouched].any()


def test_a_slot_below_zero_is_skipped_as_the_backend_skips_it(kernel: ModuleType) -> None:
    cache = torch.zeros(BLOCKS, 1, BLOCK_SIZE, 16)
    views = [paged_probe.side_by_side(cache, 8)]
    ones = torch.ones(1, 4, 1, 8)
    kernel.inject_paged(ones, ones, kernel.paged_layers(views), torch.tensor([0, 1]), torch.tensor([-1, 5]), None)
    assert cache.sum() == 16 and cache[0, 0, 5].sum() == 16


@pytest.mark.parametrize("turns", [None, rotary(16), rotary(8), rotary(16, neox=False)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_proven_kernel_takes_over_and_fills_the_cache_like_the_portable_path(
    kernel: ModuleType, turns: FakeRotary | None, dtype: torch.dtype
) -> None:
    slab = slab_of(turns, dtype)
    slab.prove_kernel()
    assert slab.injector == "triton: proven (side_by_side)"
    (group,) = slab.groups
    assert group.paged is not None and not group.keys.any() and not group.values.any()
    assert not any(layer.attention.kv_cache.any() for layer in group.layers)
    group.keys.normal_()
    group.values.normal_()
    rows, positions, slots = torch.arange(30, 3, -1), torch.arange(27) * 3, torch.arange(27) * 5 + 2
    slab.inject(rows, positions, slots)
    fast = [layer.attention.kv_cache.clone() for layer in group.layers]
    for layer in group.layers:
        layer.attention.kv_cache.zero_()
    group.inject(gather_rotated, rows, positions, slots)
    for layer, got in zip(group.layers, fast, strict=True):
        assert torch.allclose(got.float(), layer.attention.kv_cache.float(), atol=4 * torch.finfo(dtype).eps)
        assert got.any()


def test_a_backend_that_writes_elsewhere_keeps_the_portable_path(kernel: ModuleType) -> None:
    slab = slab_of(rotary(16), shift=1)
    slab.prove_kernel()
    assert slab.groups[0].paged is None and slab.injector.startswith("portable: not proven on this cache")


def test_a_kernel_that_rotates_otherwise_is_found_out(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RotaryTable, "at", lambda self, positions: (self.sin[positions], self.cos[positions]))
    slab = slab_of(rotary(16))
    honest = RotaryTable(rotary(16).cos_sin_cache, True)
    write = type(slab.groups[0]).inject

    def unturned(group: Any, gather: Any, rows: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> None:
        table, group.table = group.table, None
        keys = group.keys.clone()
        group.keys[:, rows] = rotate(keys[:, rows], honest.cos[positions], honest.sin[positions], True)
        write(group, gather, rows, positions, slots)
        group.table, group.keys[:] = table, keys

    monkeypatch.setattr(type(slab.groups[0]), "inject", unturned)
    slab.prove_kernel()
    assert slab.groups[0].paged is None and "off by" in slab.injector


def _one_step_off(numbers: torch.Tensor) -> torch.Tensor:
    return (numbers.view(torch.int16) + 1).view(torch.bfloat16)


def _small_ones_lost(numbers: torch.Tensor) -> torch.Tensor:
    return torch.where(numbers.abs() < 0.01, 0, numbers)


@pytest.mark.parametrize("harm", [_one_step_off, _small_ones_lost])
@pytest.mark.parametrize(("turns", "part"), [(None, "keys"), (None, "values"), (rotary(16), "values")])
def test_a_kernel_that_changes_what_it_only_moves_is_found_out(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch, turns: FakeRotary | None, part: str, harm: Any
) -> None:
    real = kernel.inject_paged

    def harmful(keys: torch.Tensor, values: torch.Tensor, *more: Any) -> None:
        real(harm(keys) if part == "keys" else keys, harm(values) if part == "values" else values, *more)

    monkeypatch.setattr(kernel, "inject_paged", harmful)
    slab = slab_of(turns, torch.bfloat16)
    slab.prove_kernel()
    assert slab.groups[0].paged is None and "off by" in slab.injector


def test_caches_of_unlike_layers_are_refused(kernel: ModuleType) -> None:
    one, other = torch.zeros(4, 16, 2, 8), torch.zeros(4, 8, 2, 8)
    with pytest.raises(ValueError, match="strides"):
        kernel.paged_layers([(one, one), (other, other)])
    with pytest.raises(ValueError, match="side by side"):
        kernel.paged_layers([(one.transpose(2, 3), one.transpose(2, 3))])
