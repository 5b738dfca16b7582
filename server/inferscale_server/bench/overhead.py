"""What memory as KV costs beside the engine, and what an injection costs in it, beside their bounds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from inferscale_server.bench.sample import Sample

BEFORE_ENGINE = ("search", "plan", "stage")
"""Stages of a chat before vLLM has it, without the embedding of the question."""
WITH_EMBEDDING_AT_MOST_MS = 12.0
WITHOUT_EMBEDDING_AT_MOST_MS = 1.0
INJECTED_TOKENS = 1900
"""About 50 facts of LoCoMo with their dates."""
INJECTION_AT_MOST_MS = 10.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Median milliseconds beside their bound."""

    name: str
    ms: float
    at_most_ms: float

    @property
    def met(self) -> bool:
        """Is it within its bound?"""
        return self.ms <= self.at_most_ms


def overheads(cold: Sequence[Sample], injection_ms: float | None = None) -> list[Overhead]:
    """Of the answers as KV with the most facts; `injection_ms` is for INJECTED_TOKENS, None when not measured."""
    as_kv = [sample for sample in cold if sample.served == "kv"]
    largest = max((sample.k for sample in as_kv), default=0)
    found = []
    if stages := [sample.stages_ms for sample in as_kv if sample.k == largest]:
        before = [sum(told.get(stage, 0.0) for stage in BEFORE_ENGINE) for told in stages]
        whole = [told.get("embed", 0.0) + ms for told, ms in zip(stages, before, strict=True)]
        named = " + ".join(BEFORE_ENGINE)
        found.append(Overhead(f"embed + {named} at k = {largest}", median(whole), WITH_EMBEDDING_AT_MOST_MS))
        found.append(Overhead(f"{named} at k = {largest}", median(before), WITHOUT_EMBEDDING_AT_MOST_MS))
    if injection_ms is not None:
        found.append(Overhead(f"injection of {INJECTED_TOKENS} tokens", injection_ms, INJECTION_AT_MOST_MS))
    return found
