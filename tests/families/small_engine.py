"""A tiny transformer with a paged cache, behind the engine's door: real slab, tap and gate, without vLLM.

Two layers rotate by one base and one by another, as hybrid models do; each step writes through the layers' own cache
writes, so that the tap captures and injections land where they do in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from inferscale_server.command import Command, Extent, rows_of
from inferscale_server.engine.difference import Difference
from inferscale_server.engine.first_token import FirstToken
from inferscale_server.engine.scheduler_half import Load, StepCapture, StepCommands
from inferscale_server.engine.slab import SlabCodec
from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.engine.worker_half import WorkerHalf
from tests.unit.attention import FakeAttention, FakeImpl, FakeRotary, rotary

HEADS, DIM, VOCABULARY, BLOCK = 2, 8, 64, 16
POSITIONS = 512
WIDTH = HEADS * DIM


class QuickImpl(FakeImpl):
    """The cache write without a loop."""

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        kv_cache[slot_mapping, 0], kv_cache[slot_mapping, 1] = key, value


@dataclass
class SmallModel:
    """Random weights; float64 inside, so that what differs in a test differs for a reason."""

    layers: list[TappedLayer]
    seed: int = 7
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.weights = {"embed": torch.randn(VOCABULARY, WIDTH).double()}
        for number in range(len(self.layers)):
            for name in ("q", "k", "v", "o", "mlp"):
                self.weights[f"{name}{number}"] = torch.randn(WIDTH, WIDTH).double() / WIDTH**0.5 * 1.5

    def forward(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """Compute positions start … of a prompt whose earlier ones lie in the cache (slot = position); logits behind
        each token, (tokens, VOCABULARY)."""
        hidden = self.weights["embed"][torch.tensor(token_ids)]  # (n, WIDTH)
        at = torch.arange(start, start + len(token_ids))
        for number, layer in enumerate(self.layers):
            hidden = hidden + self._attend(number, layer, _normed(hidden), at)
            hidden = hidden + torch.tanh(_normed(hidden) @ self.weights[f"mlp{number}"])
        return _normed(hidden) @ self.weights["embed"].T

    def _attend(self, number: int, layer: TappedLayer, hidden: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        query, key, value = ((hidden @ self.weights[f"{n}{number}"]).view(-1, HEADS, DIM) for n in "qkv")
        query, key = (_rotated(part, at, layer.rotary) for part in (query, key))
        attention = layer.attention
        attention.impl.do_kv_cache_update(attention, key.float(), value.float(), attention.kv_cache, at)
        keys, values = attention.kv_cache[: at[-1] + 1].double().unbind(1)  # (positions, HEADS, DIM)
        scores = torch.einsum("qhd,khd->hqk", query, keys) / DIM**0.5
        future = torch.arange(len(keys))[None] > at[:, None]
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values).flatten(1) @ self.weights[f"o{number}"]


class SmallEngine:
    """The engine's door over a SmallModel: one request at a time, a prefix cache by salt."""

    def __init__(self, rows: int = 1024, slab_codec: SlabCodec = "none") -> None:
        turns = [rotary(DIM, positions=POSITIONS), rotary(DIM, base=100.0, positions=POSITIONS)]
        self.layers = [_layer(str(number), turns[number == 1]) for number in range(3)]
        self.worker = WorkerHalf(rows, slab_codec=slab_codec)
        self.worker.attach_layers(self.layers, torch.float32, torch.device("cpu"), compiled=False)
        self.model = SmallModel(self.layers)
        self.shared_cache = False  # a prefix cache that forgets its salts
        self._cached: dict[str, tuple[list[int], torch.Tensor]] = {}

    async def encode(self, prompt_ids: Sequence[int], command: Command) -> None:
        """One prefill with injection and capture."""
        self._run(prompt_ids, command, "")

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        """Complete?"""
        return self.worker.captured([(stamp, [(e.row, e.length) for e in extents]) for stamp, extents in attempts])

    async def difference(self, extents: Sequence[Extent], others: Sequence[Extent]) -> Difference:
        """How far apart?"""
        one, other = [[(e.row, e.length) for e in side] for side in (extents, others)]
        return self.worker.difference(one, other)

    async def first_logprobs(
        self, prompt_ids: Sequence[int], command: Command | None, salt: str | None = None
    ) -> FirstToken:
        """The distribution behind a prompt."""
        logits, covered, cached = self._run(prompt_ids, command, salt or "")
        likeliest = logits[-1].log_softmax(-1).topk(20)
        return FirstToken(
            dict(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)), covered, cached
        )

    async def answer_logprobs(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], command: Command | None
    ) -> list[float]:
        """Log probability of each token of an answer."""
        logits, _, _ = self._run([*prompt_ids, *answer_ids], command, "")
        logprobs = logits[-len(answer_ids) - 1 : -1].log_softmax(-1)
        return [float(logprobs[number, token]) for number, token in enumerate(answer_ids)]

    def _run(self, prompt_ids: Sequence[int], command: Command | None, salt: str) -> tuple[torch.Tensor, int, int]:
        hit = self._hit(prompt_ids, salt)
        injection = None if command is None else command.injection
        planned = 0 if injection is None else len(injection.token_ids)
        if not hit:
            for layer in self.layers:
                layer.attention.kv_cache.fill_(float("nan"))  # a request's blocks were another's before
        covered = max(planned, hit)
        commands = self._commands(command, hit, covered, len(prompt_ids))
        self.worker.begin(commands)
        self.worker.load(commands.loads)
        logits = self.model.forward(prompt_ids[covered:], covered)
        self.worker.end()
        if salt:
            caches = torch.stack([layer.attention.kv_cache for layer in self.layers])
            self._cached[salt] = ([*prompt_ids], caches.clone())
        return logits, min(covered, planned), covered

    def _hit(self, prompt_ids: Sequence[int], salt: str) -> int:
        """Whole blocks of an earlier prompt under this salt; one token is always computed."""
        for known, (ids, caches) in self._cached.items():
            if salt and (known == salt or self.shared_cache) and ids == [*prompt_ids]:
                for layer, cache in zip(self.layers, caches, strict=True):
                    layer.attention.kv_cache.copy_(cache)
                return (len(ids) - 1) // BLOCK * BLOCK
        return 0

    @staticmethod
    def _commands(command: Command | None, hit: int, covered: int, length: int) -> StepCommands:
        loads: tuple[Load, ...] = ()
        captures: tuple[StepCapture, ...] = ()
        if command is not None and command.injection is not None and covered > hit:
            rows, at = torch.tensor(rows_of(command.injection.extents))[hit:], torch.arange(hit, covered)
            loads = (Load(rows.numpy(), at.numpy(), at.numpy(), frozenset()),)
        for asked in () if command is None else command.captures:
            at = torch.arange(asked.start, asked.start + asked.length)
            assert asked.start >= covered and asked.start + asked.length <= length
            stamps = torch.full_like(at, asked.stamp)
            rows = torch.tensor(rows_of(asked.extents))
            captures += (StepCapture(rows.numpy(), at.numpy(), at.numpy(), stamps.numpy()),)
        return StepCommands(loads, captures)


def _layer(name: str, turns: FakeRotary) -> TappedLayer:
    cache = torch.zeros(POSITIONS, 2, HEADS, DIM)
    return TappedLayer(name, FakeAttention(cache, QuickImpl()), turns, HEADS, DIM)  # type: ignore[arg-type]


def _normed(hidden: torch.Tensor) -> torch.Tensor:
    return hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt()


def _rotated(part: torch.Tensor, at: torch.Tensor, turns: FakeRotary) -> torch.Tensor:
    """(n, HEADS, DIM) rotated to positions `at`, halves against each other."""
    cos, sin = turns.cos_sin_cache[at].double()[:, None].chunk(2, dim=-1)
    a, b = part.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
