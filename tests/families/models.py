"""One tiny model of each family with random weights in float32, and a tokenizer for them, written to a folder.

Weights are wide enough that attention is not uniform and greedy answers have no near-ties; biases and norms, which
libraries initialise to nothing, are random too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

POSITIONS = 1024
VOCABULARY = 512
HEAD_DIM = 32
WINDOW = 48

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = (
    "Omar keeps three goats that are named after rivers, Danube, Loire and Tagus. You are a helpful assistant. "
    "Here is what you know about the user from earlier conversations. Answer the question of the user with it. "
    "What is the name of the dog? The spare key lies under the third flower pot, and the light must be switched off."
)


@dataclass(frozen=True)
class Family:
    """How to build one. `scaled_from` is the original context of a scaled rotation, 0 without scaling."""

    build: Callable[[], Any]
    scaled_from: int = 0


def _shape(**more: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **more,
    }


def _llama(**rope: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    rope = {"rope_theta": 10_000.0, "rope_type": "default", **rope}
    return LlamaForCausalLM(LlamaConfig(**_shape(head_dim=HEAD_DIM, rope_parameters=rope)))


def _mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**_shape(head_dim=HEAD_DIM, sliding_window=WINDOW)))


def _qwen2() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_shape()))


def _qwen3() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_shape(head_dim=HEAD_DIM)))


def _gemma3() -> Any:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    shape = _shape(num_hidden_layers=len(kinds), head_dim=HEAD_DIM, sliding_window=WINDOW, query_pre_attn_scalar=32)
    return Gemma3ForCausalLM(Gemma3TextConfig(**shape, layer_types=kinds))


def _phi3(original: int) -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    rotated = HEAD_DIM * 3 // 4
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0 + 0.05 * number for number in range(rotated // 2)],
        "long_factor": [2.0 + 0.5 * number for number in range(rotated // 2)],
        "original_max_position_embeddings": original,
    }
    shape = _shape(max_position_embeddings=2 * original, original_max_position_embeddings=original)
    return Phi3ForCausalLM(Phi3Config(**shape, rope_parameters=rope))


def _stablelm() -> Any:
    from transformers import StableLmConfig, StableLmForCausalLM

    rope = {"rope_theta": 10_000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
    return StableLmForCausalLM(StableLmConfig(**_shape(rope_parameters=rope)))


def _bloom() -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=128, n_layer=3, n_head=4, **_ENDS))


def _deepseek() -> Any:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    heads = {"qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32}
    latent = {"kv_lora_rank": 512, "q_lora_rank": None, **heads}  # vLLM's kernels take this size alone
    dense = {"first_k_dense_replace": 3, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    return DeepseekV2ForCausalLM(DeepseekV2Config(**_shape(num_key_value_heads=4), **latent, **dense))


def _falcon_h1() -> Any:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    states = {"mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_chunk_size": 64}
    return FalconH1ForCausalLM(FalconH1Config(**_shape(), **states))


_ENDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
FAMILIES = {
    "llama": Family(_llama),
    "llama3": Family(lambda: _llama(**LLAMA3), scaled_from=128),
    "linear": Family(lambda: _llama(rope_type="linear", factor=4.0), scaled_from=POSITIONS // 4),
    "yarn": Family(lambda: _llama(rope_type="yarn", factor=4.0, original_max_position_embeddings=256), scaled_from=256),
    "mistral": Family(_mistral),
    "qwen2": Family(_qwen2),
    "qwen3": Family(_qwen3),
    "gemma3": Family(_gemma3),
    "phi3-short": Family(lambda: _phi3(2 * POSITIONS)),
    "phi3-long": Family(lambda: _phi3(POSITIONS // 2), scaled_from=POSITIONS // 2),
    "stablelm": Family(_stablelm),
}

TEXT_FAMILIES = {"bloom": Family(_bloom), "deepseek": Family(_deepseek), "falcon-h1": Family(_falcon_h1)}
"""Their memory is served as text: ALiBi, a compressed cache, running states."""


def build(name: str) -> Any:
    """The model, in evaluation mode, the same weights every time."""
    torch.manual_seed(3)
    model = (FAMILIES | TEXT_FAMILIES)[name].build().float().eval()
    with torch.no_grad():
        for label, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=1.0 if "embed" in label else 1.2 / weight.shape[-1] ** 0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
    return model


def write(name: str, folder: Path) -> Path:
    """Model and tokenizer as a folder that vLLM loads."""
    build(name).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer() -> Any:
    """Byte-level pairs learnt from a few sentences; any text has tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([CORPUS], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>", pad_token="<|end|>")
    fast.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    fast.chat_template = CHAT_TEMPLATE
    return fast
