"""Times the injection kernel on a GPU beside a plain copy of the same bytes, and compares it with its float32 twin.

Needs torch and triton, nothing else of the project's packages:

    python bench/gpu_kernel.py              # 1,024 tokens of Llama-3.1-8B's shape, bfloat16, on a CUDA device
    python bench/gpu_kernel.py --tiny       # a small shape in Triton's interpreter, on any machine: no timing

Prints one JSON object. Exit 1 when the kernel and its twin differ by more than rounding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHUNK = 37
"""Tokens of one fact: rows lie side by side within it, and anywhere else between two."""
ROUNDS = 50


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    head_dim: int
    tokens: int
    slab_rows: int
    blocks: int
    block_size: int


LLAMA_8B = Shape(layers=32, heads=8, head_dim=128, tokens=1024, slab_rows=16384, blocks=512, block_size=16)
TINY = Shape(layers=2, heads=2, head_dim=16, tokens=50, slab_rows=120, blocks=12, block_size=16)


def main() -> int:
    """Run, print, and say by the exit code whether the kernel is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small shape in Triton's interpreter, without timing")
    tiny = parser.parse_args().tiny
    if tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # read when the kernel is defined
    import torch

    if not tiny and not torch.cuda.is_available():
        print("no CUDA device: use --tiny for a run in Triton's interpreter", file=sys.stderr)
        return 2
    report = measure(TINY if tiny else LLAMA_8B, "cpu" if tiny else "cuda")
    print(json.dumps(report, indent=2))
    return 0 if report["equal"] else 1


def measure(shape: Shape, device: str) -> dict[str, Any]:
    """Compare and, on a GPU, time. Times in ms (median), bandwidth in GB/s of bytes read and written."""
    import torch

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
    from inferscale_server.engine.paged_kernel import inject_paged, paged_layers
    from inferscale_server.rotary import rotate

    torch.manual_seed(0)
    dtype = torch.bfloat16
    slab = (shape.layers, shape.slab_rows, shape.heads, shape.head_dim)
    keys, values = (torch.randn(slab, device=device).to(dtype) for _ in range(2))
    cache_shape = (shape.blocks, shape.heads, shape.block_size, 2 * shape.head_dim)
    caches = [torch.zeros(cache_shape, dtype=dtype, device=device) for _ in range(shape.layers)]
    views = [tuple(cache.transpose(1, 2).split(shape.head_dim, dim=-1)) for cache in caches]
    paged = paged_layers(views)  # type: ignore[arg-type]
    rows = scattered(shape).to(device)
    slots = torch.randperm(shape.blocks * shape.block_size, device=device)[: shape.tokens]
    cos, sin = turn(shape, device)

    def inject() -> None:
        inject_paged(keys, values, paged, rows, slots, (cos, sin))

    inject()
    wanted = rotate(keys[:, rows].float(), cos, sin, is_neox=True)
    worst, right = 0.0, True
    for number, (key_cache, value_cache) in enumerate(views):
        got = key_cache[slots // shape.block_size, slots % shape.block_size].float()
        difference = (got - wanted[number]).abs()
        worst = max(worst, difference.max().item())
        step = torch.finfo(dtype).eps * wanted[number].abs().clamp(min=1.0)
        right &= bool((difference <= step).all())
        stored = value_cache[slots // shape.block_size, slots % shape.block_size]
        right &= bool(torch.equal(stored, values[number][rows]))
    report: dict[str, Any] = {"shape": asdict(shape), "dtype": "bfloat16", "equal": right, "largest_difference": worst}
    if device == "cuda":
        report |= times(shape, inject)
    return report


def scattered(shape: Shape) -> Any:
    """Rows of facts that lie anywhere in the slab: (tokens,) int64."""
    import torch

    starts = torch.randperm(shape.slab_rows // CHUNK)[: -(-shape.tokens // CHUNK)] * CHUNK
    return (starts[:, None] + torch.arange(CHUNK)).flatten()[: shape.tokens]


def turn(shape: Shape, device: str) -> tuple[Any, Any]:
    """cos and sin of positions 0 … tokens-1, base 500,000: each (tokens, head_dim / 2) float32."""
    import torch

    frequencies = 500_000.0 ** (-torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim)
    angles = torch.arange(shape.tokens, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def times(shape: Shape, inject: Callable[[], None]) -> dict[str, Any]:
    """The kernel beside `copy_` of as many bytes."""
    import torch

    size = 2 * shape.layers * shape.tokens * shape.heads * shape.head_dim
    source = torch.randn(size, device="cuda").bfloat16()
    target = torch.empty_like(source)
    kernel_ms, copy_ms = timed(inject), timed(lambda: target.copy_(source))
    moved = 2 * size * source.element_size()
    return {
        "device": torch.cuda.get_device_name(),
        "kernel_ms": kernel_ms,
        "copy_ms": copy_ms,
        "ratio": kernel_ms / copy_ms,
        "kernel_gb_s": moved / kernel_ms / 1e6,
        "copy_gb_s": moved / copy_ms / 1e6,
    }


def timed(work: Callable[[], object]) -> float:
    """Median milliseconds of one call, with caches flushed in between."""
    import torch

    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    taken = []
    for _ in range(ROUNDS + 5):
        flush.zero_()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(stop))
    return statistics.median(taken[5:])


if __name__ == "__main__":
    sys.exit(main())
