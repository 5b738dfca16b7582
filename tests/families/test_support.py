"""Which families get KV, and the reason for those that do not, from their configuration alone."""

from __future__ import annotations

from typing import Any

import pytest

from inferscale_server.engine.families import refusal_of

from .models import FAMILIES

TEXT: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "deepseek_v3", "kv_lora_rank": 512, "q_lora_rank": 1536}, "MLA"),
    ({"model_type": "bloom"}, "ALiBi"),
    ({"model_type": "mpt", "attn_config": {"alibi": True}}, "ALiBi"),
    ({"model_type": "falcon", "alibi": True}, "ALiBi"),
    ({"model_type": "mamba2", "ssm_state_size": 128}, "state"),
    ({"model_type": "jamba", "mamba_d_state": 16}, "state"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}, "state"),
    ({"model_type": "qwen3_next", "layer_types": ["linear_attention", "full_attention"]}, "state"),
    ({"model_type": "recurrent_gemma", "block_types": ["recurrent", "recurrent", "attention"]}, "state"),
    ({"model_type": "gpt2"}, "learned positions"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "encoder"),
    ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic NTK"),
    ({"model_type": "qwen2_vl", "text_config": {"rope_scaling": {"type": "mrope", "mrope_section": [16]}}}, "M-RoPE"),
    ({"model_type": "other", "rope_parameters": {"full_attention": {"rope_type": "proportional"}}}, "proportional"),
]


@pytest.mark.parametrize(("config", "reason"), TEXT, ids=[str(config["model_type"]) for config, _ in TEXT])
def test_a_family_without_movable_keys_is_served_text_and_told_why(config: dict[str, Any], reason: str) -> None:
    assert reason in (refusal_of(config) or "")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_with_movable_keys_is_not_refused(name: str) -> None:
    assert refusal_of(FAMILIES[name].build().config.to_dict()) is None


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 32.0}},
        {"model_type": "deepseek", "kv_lora_rank": None},
        {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}},
        {"model_type": "qwen2", "rope_scaling": None, "layer_types": ["full_attention"]},
        {"model_type": "falcon", "alibi": False},
        {},
    ],
)
def test_a_configuration_with_nothing_against_it_is_tried(config: dict[str, Any]) -> None:
    assert refusal_of(config) is None
