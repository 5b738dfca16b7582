"""Which attention layers hold a token's keys and values, how each rotates its keys, and why KV mode may be impossible.

Reads vLLM's layer registry and the model's modules; decides nothing else. A refusal is a sentence for the operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.rotary_embedding import (
    LinearScalingRotaryEmbedding,
    Llama3RotaryEmbedding,
    Phi3LongRoPEScaledRotaryEmbedding,
    RotaryEmbedding,
    YaRNScalingRotaryEmbedding,
)
from vllm.v1.attention.backend import AttentionType

from inferscale_server.engine.tapped import TappedLayer

KNOWN_ROTARY = (
    RotaryEmbedding,
    Llama3RotaryEmbedding,
    LinearScalingRotaryEmbedding,
    YaRNScalingRotaryEmbedding,
    Phi3LongRoPEScaledRotaryEmbedding,
)
"""Exact classes whose table does not change with the input; subclasses with other rules are refused."""


@dataclass
class LayerReport:
    """The layers of the model in order, and the reasons against KV mode (empty: none)."""

    layers: list[TappedLayer] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def find_layers(vllm_config: VllmConfig, kv_cache_config: Any, model: torch.nn.Module) -> LayerReport:
    """Inspect the loaded model. Never raises for a foreign model: what is not understood becomes a refusal."""
    report = LayerReport(refusals=[*graph_refusals(vllm_config)])
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        report.refusals.append(f"the model needs {len(groups)} KV cache groups; one is supported")
    cached = {name for group in groups for name in group.layer_names}
    modules = dict(model.named_modules())
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        refusal = _refusal_of(name, layer, cached)
        if refusal is not None:
            report.refusals.append(refusal)
        elif isinstance(layer, Attention) and layer.kv_sharing_target_layer_name is None:
            _add(report, name, layer, modules)
    if not report.layers and not report.refusals:
        report.refusals.append("the model has no attention layer with a paged KV cache")
    report.refusals = list(dict.fromkeys(report.refusals))
    return report


def graph_refusals(vllm_config: VllmConfig) -> list[str]:
    """Settings under which the cache write is not called from Python in every prefill step."""
    compilation = vllm_config.compilation_config
    found = []
    mode = getattr(compilation.cudagraph_mode, "name", "NONE")
    if mode not in ("NONE", "PIECEWISE", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"):
        found.append(f"cudagraph_mode {mode} hides the cache write inside a graph; use FULL_AND_PIECEWISE")
    if mode != "NONE" and not any("unified_kv_cache_update" in op for op in compilation.splitting_ops or ()):
        found.append("splitting_ops lack unified_kv_cache_update, so graphs hide the cache write")
    if getattr(compilation, "use_breakable_cudagraph", False):
        found.append("breakable CUDA graphs hide the cache write (VLLM_BATCH_INVARIANT switches them on)")
    if vllm_config.speculative_config is not None and vllm_config.speculative_config.method != "ngram":
        found.append(f"speculative decoding by {vllm_config.speculative_config.method!r} registers drafter layers")
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        found.append("pipeline parallelism is not tested with KV injection")
    return found


def _refusal_of(name: str, layer: Any, cached: set[str]) -> str | None:
    if not isinstance(layer, Attention):
        return f"layers of type {type(layer).__name__} keep a state that cannot be moved"
    if layer.attn_type != AttentionType.DECODER:
        return f"{layer.attn_type} attention cannot be moved"
    if layer.kv_sharing_target_layer_name is None and name not in cached:
        return "attention layers without a paged KV cache (a drafter's?) cannot be filled"
    if layer.attn_backend.forward_includes_kv_cache_update:
        return f"backend {layer.attn_backend.get_name()} writes the cache inside its forward"
    if getattr(layer, "kv_cache_update_bypass", False):
        return "the model writes the KV cache itself"
    if getattr(layer.impl, "alibi_slopes", None) is not None:
        return "ALiBi positions are part of the attention scores, not of the keys"
    return None


def _add(report: LayerReport, name: str, layer: Attention, modules: Mapping[str, torch.nn.Module]) -> None:
    parent = modules.get(name.rpartition(".")[0])
    rotary = getattr(parent, "rotary_emb", "absent")
    if rotary == "absent":
        report.refusals.append("attention layers without a rotary_emb module: positions unknown")
        return
    if rotary is not None and type(rotary) not in KNOWN_ROTARY:
        report.refusals.append(f"{type(rotary).__name__} is not supported: its rotation may change with the prompt")
        return
    report.layers.append(TappedLayer(name, layer, rotary, layer.num_kv_heads, layer.head_size))
