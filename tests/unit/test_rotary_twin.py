"""C1: keys moved from one position to another against the keys of transformers' own forward at that position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inferscale_server.rotary import RotaryTable, rotate

TOKENS = 12
POSITIONS = 512

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
}


def llama(scaling: dict[str, Any]) -> Any:
    """A tiny Llama with random weights."""
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(**_tiny(), rope_parameters={"rope_theta": 10_000.0, **scaling})
    return LlamaModel(config).eval()


def stablelm() -> Any:
    """A tiny StableLM: rotates a quarter of each head."""
    from transformers.models.stablelm.configuration_stablelm import StableLmConfig
    from transformers.models.stablelm.modeling_stablelm import StableLmModel

    torch.manual_seed(0)
    rope = {"rope_theta": 10_000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
    return StableLmModel(StableLmConfig(**_tiny(), rope_parameters=rope)).eval()


def _tiny() -> dict[str, Any]:
    return {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
    }


def keys_at(model: Any, start: int) -> torch.Tensor:
    """The model's own keys of one text at positions start …: (layers, tokens, heads, head_dim)."""
    torch.manual_seed(1)
    ids = torch.randint(0, 50, (1, TOKENS))
    positions = torch.arange(start, start + TOKENS)[None]
    with torch.no_grad():
        cache = model(input_ids=ids, position_ids=positions, use_cache=True).past_key_values
    return torch.stack([layer.keys[0].transpose(0, 1) for layer in cache.layers])


def table_of(model: Any) -> RotaryTable:
    """cos and sin of the model's own rotary module."""
    cos, sin = model.rotary_emb(torch.zeros(1), torch.arange(POSITIONS)[None])
    half = cos.shape[-1] // 2
    return RotaryTable(torch.cat((cos[0, :, :half], sin[0, :, :half]), -1), is_neox=True)


def moved(keys: torch.Tensor, table: RotaryTable, a: int, b: int) -> torch.Tensor:
    """Keys taken at a …, put at b …."""
    span = torch.arange(TOKENS)
    free = rotate(keys, *table.back_from(a + span), table.is_neox)
    return rotate(free, *table.at(b + span), table.is_neox)


@pytest.mark.parametrize("kind", [*SCALINGS, "partial"])
def test_moved_keys_are_those_of_the_models_own_forward(kind: str) -> None:
    model = stablelm() if kind == "partial" else llama(SCALINGS[kind])
    table = table_of(model)
    assert table.rotary_dim == (4 if kind == "partial" else 16)
    for a, b in ((0, 0), (0, 37), (100, 3), (480, 17), (5, 499)):
        there = keys_at(model, b)
        assert (moved(keys_at(model, a), table, a, b) - there).abs().max() < 1e-4
        assert a == b or (keys_at(model, a) - there).abs().max() > 1e-2, "positions make no difference: nothing tested"
