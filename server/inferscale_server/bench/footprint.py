"""What memories take: bytes of KV a token, a fact and a user, and how many users' memories a GPU holds at once.

Knows: shapes of common models, and the sum. Refuses to know: a running server, which says what it really uses in
`/v1/users/{user_id}/footprint`.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferscale_server.kv_codec import GroupShape, KvCodec, KvLayout

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
"""KV lies in the slab in the model's own type."""

GPUS_GIB = (24, 80)
USABLE = 0.9
"""Of a GPU's memory: vLLM's default."""
ENGINE_GIB = 8.0
"""Left to vLLM's own blocks and activations."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides how large KV is. `parameters` counts weights."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    parameters: float

    def token_bytes(self, dtype: str) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES[dtype]

    def file_bytes(self, tokens: int, dtype: str, codec: KvCodec) -> int:
        """Keys and values of a fact in its files, without their headers."""
        shape = GroupShape(self.layers, self.kv_heads, self.head_dim)
        return KvLayout(dtype, (shape,), 0, 1, codec).payload_bytes(tokens)


@dataclass(frozen=True, slots=True)
class Load:
    """How much each user has said."""

    facts: int = 100
    tokens_a_fact: int = 30


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes for one model and dtype; `users` by GPU, in the order of GPUS_GIB. The codecs' are of a file: a fact in
    host memory has no channels of its own."""

    model: str
    dtype: str
    token_bytes: int
    fact_bytes: int
    fact_bytes_int8: int
    fact_bytes_int4: int
    user_bytes: int
    users: tuple[int, ...]


MODELS = (
    ModelShape("SmolLM2-135M", 30, 3, 64, 0.135e9),
    ModelShape("Gemma-3-4B", 34, 4, 256, 4.3e9),
    ModelShape("Qwen2.5-7B", 28, 4, 128, 7.6e9),
    ModelShape("Mistral-7B", 32, 8, 128, 7.2e9),
    ModelShape("Llama-3.1-8B", 32, 8, 128, 8.0e9),
)


def sizes_of(model: ModelShape, dtype: str, load: Load = Load()) -> Sizes:
    """What one model's memories take."""
    token = model.token_bytes(dtype)
    user = token * load.tokens_a_fact * load.facts
    weights = model.parameters * DTYPE_BYTES[dtype]
    users = tuple(max(int((gpu * USABLE - ENGINE_GIB) * GIB - weights) // user, 0) for gpu in GPUS_GIB)
    int8, int4 = (model.file_bytes(load.tokens_a_fact, dtype, codec) for codec in ("int8", "int4"))
    return Sizes(model.name, dtype, token, token * load.tokens_a_fact, int8, int4, user, users)


def all_sizes(load: Load = Load()) -> tuple[Sizes, ...]:
    """Every model in every dtype."""
    return tuple(sizes_of(model, dtype, load) for model in MODELS for dtype in DTYPE_BYTES)


def markdown(rows: tuple[Sizes, ...]) -> str:
    """The table of `docs/sizing.md`."""
    gpus = " | ".join(f"users, {gpu} GiB GPU" for gpu in GPUS_GIB)
    head = f"| model | dtype | bytes a token | KiB a fact | int8 | int4 | MiB a user | users a GiB | {gpus} |"
    return "\n".join([head, "|---|---|" + "---:|" * (6 + len(GPUS_GIB)), *map(_row, rows)])


def _row(sizes: Sizes) -> str:
    per_gib = f"{GIB / sizes.user_bytes:.1f}"
    facts = (sizes.fact_bytes, sizes.fact_bytes_int8, sizes.fact_bytes_int4)
    kib = [f"{size / KIB:.0f}" for size in facts]
    figures = [f"{sizes.token_bytes}", *kib, f"{sizes.user_bytes / MIB:.0f}", per_gib]
    return "| " + " | ".join([sizes.model, sizes.dtype, *figures, *map(str, sizes.users)]) + " |"
