"""What a model's configuration tells about KV mode before anything is loaded: a reason against it, or none.

Pure; knows configurations as they stand in `config.json`. The last word is had by the layers that vLLM builds
(layers.py) and by the gate (gate.py): a family that is not named here is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ROTATIONS = frozenset({"default", "linear", "llama3", "yarn", "longrope", "su"})
"""Scalings of the rotation whose table does not change with the prompt."""
ALIBI_TYPES = frozenset({"bloom", "mpt"})
LEARNED_POSITION_TYPES = frozenset({"gpt2", "gpt_bigcode", "opt", "xglm"})
STATE_KEYS = ("ssm_cfg", "mamba_d_state", "mamba_d_conv", "ssm_state_size", "hybrid_override_pattern", "time_step_rank")
LAYER_KINDS = ("layer_types", "layers_block_type", "block_types")
STATE_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "rwkv"})


def refusal_of(config: Mapping[str, Any]) -> str | None:
    """Why a model with this configuration is served memory as text; None when nothing speaks against KV."""
    config = _of_text(config)
    checks = (_encoder, _latent, _state_space, _alibi, _learned_positions, _rotation)
    return next((reason for check in checks if (reason := check(config)) is not None), None)


def keeps_states(config: Mapping[str, Any]) -> bool:
    """Does a model with this configuration keep running states, alone or beside attention?"""
    return _state_space(_of_text(config)) is not None


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else config


def _encoder(config: Mapping[str, Any]) -> str | None:
    if config.get("is_encoder_decoder"):
        return "encoder-decoder models read the prompt in the encoder, not as decoder keys and values"
    return None


def _latent(config: Mapping[str, Any]) -> str | None:
    if config.get("kv_lora_rank"):
        return "multi-head latent attention (MLA) caches a compressed state, not keys and values"
    return None


def _state_space(config: Mapping[str, Any]) -> str | None:
    layers = {str(kind) for name in LAYER_KINDS for kind in config.get(name) or ()}
    if any(config.get(key) for key in STATE_KEYS) or layers & STATE_LAYERS:
        return "state-space, convolution or linear-attention layers keep a running state that cannot be moved"
    return None


def _alibi(config: Mapping[str, Any]) -> str | None:
    attention = config.get("attn_config")
    says = config.get("alibi") or config.get("position_embedding_type") == "alibi"
    if says or (isinstance(attention, Mapping) and attention.get("alibi")) or config.get("model_type") in ALIBI_TYPES:
        return "ALiBi positions are part of the attention scores, not of the keys"
    return None


def _learned_positions(config: Mapping[str, Any]) -> str | None:
    if config.get("model_type") in LEARNED_POSITION_TYPES:
        return "learned positions are added to the tokens, so keys cannot be freed of them"
    return None


def _rotation(config: Mapping[str, Any]) -> str | None:
    for rope in _ropes(config):
        if "mrope_section" in rope:
            return "M-RoPE gives a token several positions at once"
        kind = str(rope.get("rope_type", rope.get("type", "default")))
        if kind == "dynamic":
            return "dynamic NTK scaling changes the rotation with the prompt's length"
        if kind not in ROTATIONS:
            return f"the rotation {kind!r} is not known"
    return None


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Old and new spelling; hybrid models name one rotation a kind of layer."""
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name)
        if isinstance(rope, Mapping):
            inner = [each for each in rope.values() if isinstance(each, Mapping)]
            yield from inner or [rope]
