"""What a prompt costs on this engine, as text and as KV, by numbers that engine/calibration.py measures. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A cost that grows evenly: `fixed_ms` and `us_per_token`, neither below 0."""

    fixed_ms: float
    us_per_token: float

    def ms(self, tokens: int) -> float:
        """Milliseconds for so many tokens."""
        return self.fixed_ms + 1e-3 * self.us_per_token * tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    """One request's time to first token inside the engine, both ways (milliseconds)."""

    kv_ms: float
    text_ms: float

    @property
    def text_is_cheaper(self) -> bool:
        """Is it? Not when both are equal."""
        return self.text_ms < self.kv_ms


@dataclass(frozen=True, slots=True)
class Costs:
    """This engine's lines: of computing a prompt, and of injecting one with a single token left to compute.

    `block_tokens`: vLLM's prefix cache keeps whole blocks only.
    """

    prefill: Line
    inject: Line
    block_tokens: int

    def estimate(self, header_tokens: int, injected_tokens: int, prompt_tokens: int) -> Estimate:
        """Both ways of one prompt; the injected tokens start with the header's.

        Text gets the benefit of the doubt: the whole blocks of its header count as cached.
        """
        cached = header_tokens // self.block_tokens * self.block_tokens
        rest_ms = 1e-3 * self.prefill.us_per_token * max(prompt_tokens - injected_tokens - 1, 0)
        return Estimate(self.inject.ms(injected_tokens) + rest_ms, self.prefill.ms(prompt_tokens - cached))


def line_through(short: int, short_ms: float, long: int, long_ms: float) -> Line:
    """The line through two measurements of so many tokens; noise makes neither part negative."""
    assert 0 < short < long, f"{short} and {long} tokens"
    ms_per_token = max((long_ms - short_ms) / (long - short), 0.0)
    return Line(max(short_ms - ms_per_token * short, 0.0), 1e3 * ms_per_token)
