"""One timed answer, and what is wrong with it as a measurement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

STAGES = ("embed", "search", "plan", "stage", "ttft")
"""As the server names them; its `ttft` runs from handing the request to vLLM to the first token."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: what was asked for, what the client saw, what the server said.

    `ttft_ms` runs at the client from sending the request to the first piece of the answer. `memory_tokens` is the
    memory in the prompt, `memory_as_text` how much of it was computed instead of injected; `facts` are ids, best first.
    """

    k: int
    mode: str
    served: str
    reason: str
    ttft_ms: float
    stages_ms: Mapping[str, float]
    memory_tokens: int
    memory_as_text: int
    injected_tokens: int
    prefilled_tokens: int
    facts: tuple[str, ...] = ()
    kv_source: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens by where their KV lay when the chat came: device (with the header), host, disk; text: computed."""

    @property
    def outside_ms(self) -> float:
        """What no stage of the server accounts for: HTTP, parsing, the client itself."""
        return self.ttft_ms - sum(self.stages_ms.values())


def cold(samples: Iterable[Sample], warm_up: Iterable[Sample] = ()) -> list[Sample]:
    """The samples, in the order they were taken, whose memory cannot have come out of vLLM's prefix cache.

    As text, a hit shows in fewer tokens computed than the memory has. Injected blocks are shared only by requests that
    inject the very same facts in the same order; those of the `warm_up`, which came before, lie there too.
    """
    seen = {sample.facts for sample in warm_up if sample.served == "kv"}
    kept = []
    for sample in samples:
        warm = sample.prefilled_tokens < sample.memory_tokens if sample.served == "text" else sample.facts in seen
        if sample.served == "kv":
            seen.add(sample.facts)
        if sample.served == "off" or not warm:
            kept.append(sample)
    return kept
