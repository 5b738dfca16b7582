"""C1: keys moved from one position to another against the keys of transformers' own forward at that position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from inferscale_server.engine.tapped import table_of
from inferscale_server.rotary import RotaryTable, rotate

from .models import FAMILIES, HEAD_DIM, POSITIONS, build

TOKENS = 12
SWITCHES = "phi3-long"
"""transformers takes LongRoPE's short table for short prompts and the long one for others; vLLM one for all."""


@cache
def model_of(name: str) -> Any:
    return build(name).model


@cache
def keys_at(name: str, start: int) -> torch.Tensor:
    """The model's own keys of one text at positions start …: (layers, tokens, heads, head_dim)."""
    torch.manual_seed(1)
    ids = torch.randint(0, 50, (1, TOKENS))
    positions = torch.arange(start, start + TOKENS)[None]
    with torch.no_grad():
        kept = model_of(name)(input_ids=ids, position_ids=positions, use_cache=True).past_key_values
    return torch.stack([layer.keys[0].transpose(0, 1) for layer in kept.layers])


def tables_of(name: str) -> list[RotaryTable]:
    """cos and sin of the model's own rotary module, one table a layer."""
    model = model_of(name)
    kinds = model.config.layer_types if name == "gemma3" else [None] * model.config.num_hidden_layers
    return [_table(model, kind) for kind in kinds]


def _table(model: Any, kind: str | None) -> RotaryTable:
    at = torch.arange(POSITIONS)[None]
    cos, sin = model.rotary_emb(torch.zeros(1), at, *([kind] if kind else []))
    half = cos.shape[-1] // 2
    return RotaryTable(torch.cat((cos[0, :, :half], sin[0, :, :half]), -1), is_neox=True)


def moved(keys: torch.Tensor, tables: list[RotaryTable], a: int, b: int) -> torch.Tensor:
    """Keys taken at a …, put at b …."""
    span, layers = torch.arange(TOKENS), []
    for of_layer, table in zip(keys, tables, strict=True):
        free = rotate(of_layer, *table.back_from(a + span), table.is_neox)
        layers.append(rotate(free, *table.at(b + span), table.is_neox))
    return torch.stack(layers)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != SWITCHES])
def test_moved_keys_are_those_of_the_models_own_forward(name: str) -> None:
    tables, last = tables_of(name), POSITIONS // 2 - TOKENS
    part = {"phi3-short": 3 * HEAD_DIM // 4, "stablelm": HEAD_DIM // 4}.get(name, HEAD_DIM)
    assert {table.rotary_dim for table in tables} == {part}
    past = FAMILIES[name].scaled_from + 5
    for a, b in ((0, 0), (0, 37), (100, 3), (last, 17), (5, last), (past, 0)):
        there = keys_at(name, b)
        assert (moved(keys_at(name, a), tables, a, b) - there).abs().max() < 1e-4
        assert a == b or (keys_at(name, a) - there).abs().max() > 1e-2, "positions make no difference: nothing tested"


def test_gemma_rotates_its_layers_by_two_bases() -> None:
    tables = tables_of("gemma3")
    assert not torch.equal(tables[0].cos, tables[2].cos) and torch.equal(tables[0].cos, tables[1].cos)


def test_yarns_attention_factor_is_divided_out_and_put_back() -> None:
    (table, *_) = tables_of("yarn")
    assert float(table.cos[0, 0]) > 1.1
    free = rotate(keys_at("yarn", 9), *table.back_from(torch.arange(9, 9 + TOKENS)), is_neox=True)
    assert keys_at("yarn", 9).norm() / free.norm() == pytest.approx(float(table.cos[0, 0]), rel=1e-4)


@dataclass
class LongRope:
    """vLLM's LongRoPE module, as far as it is read: the short table, and behind it the long one."""

    long_short_cos_sin_cache: torch.Tensor
    original_max_position_embeddings: int
    use_long_rope: bool


@pytest.mark.parametrize("use_long", [False, True])
def test_longrope_is_rotated_by_the_table_that_the_server_chose(use_long: bool) -> None:
    original = POSITIONS // 2
    tables = [torch.rand(original, 24) + number for number in range(2)]  # the long one holds larger numbers
    table = table_of(LongRope(torch.cat(tables), original, use_long))
    assert table is not None and table.positions == original
    assert torch.equal(torch.cat((table.cos, table.sin), -1), tables[use_long])


def test_two_rotations_have_two_names_and_one_has_one() -> None:
    plain, again, scaled = tables_of("llama")[0], tables_of("llama")[1], tables_of("llama3")[0]
    assert plain.sample() == again.sample() != scaled.sample()
