"""Fake attention layers with a dense paged cache, and the rotation twin in float64 that everything is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inferscale_server.engine.tapped import TappedLayer

SLOTS = 256
POSITIONS = 128


@dataclass
class FakeRotary:
    """vLLM's RotaryEmbedding, as far as it is read. `scale` is YaRN's attention factor."""

    cos_sin_cache: torch.Tensor  # (positions, rotary_dim)
    is_neox_style: bool


def rotary(
    dim: int, base: float = 10_000.0, neox: bool = True, scale: float = 1.0, positions: int = POSITIONS
) -> FakeRotary:
    """A rotary embedding over the first `dim` columns."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return FakeRotary((scale * torch.cat((angles.cos(), angles.sin()), -1)).float(), neox)


class FakeImpl:
    """The backend's cache write: a dense cache of (slots, 2, heads, dim)."""

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        for number, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                kv_cache[slot, 0], kv_cache[slot, 1] = key[number], value[number]


@dataclass
class FakeAttention:
    """vLLM's Attention, as far as it is read."""

    kv_cache: torch.Tensor
    impl: FakeImpl = field(default_factory=FakeImpl)


def layer(name: str, heads: int, dim: int, turns: FakeRotary | None) -> TappedLayer:
    """One layer with an empty cache."""
    return TappedLayer(name, FakeAttention(torch.zeros(SLOTS, 2, heads, dim)), turns, heads, dim)  # type: ignore[arg-type]


def turned(keys: torch.Tensor, positions: Sequence[int], turns: FakeRotary | None) -> torch.Tensor:
    """The twin: position-free keys (n, heads, dim) rotated in float64, pair by pair, as the paper writes it."""
    out = keys.double().clone()
    if turns is None:
        return out
    half = turns.cos_sin_cache.shape[1] // 2
    for number, position in enumerate(positions):
        cos, sin = turns.cos_sin_cache[position].double().split(half)
        for pair in range(half):
            a, b = (pair, pair + half) if turns.is_neox_style else (2 * pair, 2 * pair + 1)
            x, y = keys[number, :, a].double(), keys[number, :, b].double()
            out[number, :, a] = x * cos[pair] - y * sin[pair]
            out[number, :, b] = y * cos[pair] + x * sin[pair]
    return out


@dataclass(frozen=True)
class Text:
    """Position-free keys and values of a text, a (tokens, heads, dim) pair for each layer."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def text_for(layers: Sequence[TappedLayer], tokens: int, seed: int = 0) -> Text:
    """What a model would compute for some text."""
    torch.manual_seed(seed)
    shapes = [(tokens, each.heads, each.head_dim) for each in layers]
    return Text([torch.randn(shape) for shape in shapes], [torch.randn(shape) for shape in shapes])


def forward(layers: Sequence[TappedLayer], text: Text, positions: Sequence[int], slots: Sequence[int]) -> None:
    """The model writes a text at positions into its own cache; the write may be tapped."""
    for number, each in enumerate(layers):
        keys = turned(text.keys[number], positions, each.rotary).float()  # type: ignore[arg-type]
        attention = each.attention
        attention.impl.do_kv_cache_update(attention, keys, text.values[number], attention.kv_cache, torch.tensor(slots))
