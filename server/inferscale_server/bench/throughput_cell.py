"""What one closed loop showed, and the ratios between systems. Pure; the bounds are the project's goals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from types import MappingProxyType

from inferscale_server.bench.cell import INJECTED_AT_LEAST, Ratio, percentile
from inferscale_server.bench.comparator import Reply

PROMISED_AT = 16
"""Answers under way for which the promises speak, at the largest number of facts."""
FLOOR = "off"
"""Without memory: faster than any, and no rival."""
OVER_TEXT_AT_LEAST: Mapping[int, float] = MappingProxyType({8: 6.0, 32: 4.5})
"""Answers a second of KV over text, by tokens of an answer."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is asked for: facts, answers under way at any moment, tokens of an answer."""

    k: int
    concurrency: int
    tokens: int

    def named(self, system: str) -> str:
        """A system in this setting, in words."""
        return f"{system} with k = {self.k}, {self.concurrency} at once, {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class ThroughputCell:
    """One system in one setting. Latency from asking to the whole answer; the tokens are means of an answer."""

    system: str
    k: int
    concurrency: int
    tokens: int
    answers: int
    wall_s: float
    latency_ms: float
    latency_p99_ms: float
    prefilled_tokens: float
    injected_tokens: float
    injected_share: float
    """Of the memory tokens in the prompts that the server made, how many came as KV; 0 where there were none."""
    otherwise: int
    """Answers in another mode than asked for."""
    failed: int = 0
    """Requests without an answer: their time is in `wall_s`, nothing else of them."""

    @property
    def setting(self) -> Setting:
        """The cell's place in the grid."""
        return Setting(self.k, self.concurrency, self.tokens)

    @property
    def answers_per_s(self) -> float:
        """Whole answers a second."""
        return self.answers / self.wall_s


def throughput_cell(
    system: str, setting: Setting, replies: Sequence[Reply], wall_s: float, failed: int = 0
) -> ThroughputCell:
    """Sum up one loop; `failed` of its requests are not among the replies."""
    assert replies, f"{system} gave no answer"
    latencies = [reply.latency_ms for reply in replies]
    memory = sum(reply.memory_tokens for reply in replies)
    return ThroughputCell(
        system=system,
        k=setting.k,
        concurrency=setting.concurrency,
        tokens=setting.tokens,
        answers=len(replies),
        wall_s=wall_s,
        latency_ms=median(latencies),
        latency_p99_ms=percentile(latencies, 0.99),
        prefilled_tokens=mean(reply.prefilled_tokens for reply in replies),
        injected_tokens=mean(reply.injected_tokens for reply in replies),
        injected_share=1 - sum(reply.memory_as_text for reply in replies) / memory if memory else 0.0,
        otherwise=sum(reply.served != reply.asked for reply in replies),
        failed=failed,
    )


def over_others(cells: Sequence[ThroughputCell], setting: Setting) -> dict[str, float]:
    """Answers a second of kv over each other system's, in one setting."""
    rates = {cell.system: cell.answers_per_s for cell in cells if cell.setting == setting}
    return {name: rates["kv"] / rate for name, rate in rates.items() if name != "kv" and "kv" in rates}


def throughput_ratios(cells: Sequence[ThroughputCell]) -> list[Ratio]:
    """Against text and mem0, at the largest number of facts and the promised concurrency; left out if not measured."""
    largest = max(cell.k for cell in cells)
    return [
        Ratio(f"kv / {name}, k = {largest}, {PROMISED_AT} at once, {tokens} tokens", value, bound, True)
        for tokens, bound in OVER_TEXT_AT_LEAST.items()
        for name, value in over_others(cells, Setting(largest, PROMISED_AT, tokens)).items()
        if name != FLOOR
    ]


def throughput_complaints(cells: Sequence[ThroughputCell]) -> Iterator[str]:
    """Why this run is no measurement."""
    for cell in cells:
        where = f"{cell.system} with k = {cell.k}, {cell.concurrency} at once"
        if cell.otherwise:
            yield f"{cell.otherwise} of {cell.answers} answers of {where} were not served as asked for"
        elif cell.system == "kv" and cell.injected_share < INJECTED_AT_LEAST:
            yield f"only {cell.injected_share:.1%} of the memory tokens of {where} were injected"
