"""The start-up gate: may this server inject KV, on this model, backend, dtype and version of vLLM?

Runs before the server says that it is ready, and in `inferscale doctor`, which starts a server for it. Red means text
mode, with the reason. A green verdict is kept, and a restart of the same engine repeats only the first probe.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferscale_server.catalog import Catalog, Chunk
from inferscale_server.engine.probe import (
    BEHIND_TOKENS,
    STORY_TOKENS,
    EngineTraits,
    ProbeResult,
    ProbeText,
    probe_answer,
    probe_distances,
    probe_prefix_cache,
)
from inferscale_server.engine.probe_quality import EncodedBehind, FactWords, Quality, probe_quality
from inferscale_server.engine.probe_rows import ProbeFault, ProbeRows
from inferscale_server.engine.verdict import Verdict, VerdictFolder
from inferscale_server.plan import Frame

if TYPE_CHECKING:
    from inferscale_server.engine.door import EngineDoor

logger = logging.getLogger(__name__)

STORY = (
    "Every morning the keeper of the lighthouse wrote down the wind, the height of the waves and the ships that "
    "passed. On the last page of his book he drew a map of the island, with a cross where the old boat lay."
)
QUESTION = "What is two plus two?"


@dataclass(frozen=True)
class Gate:
    """All that the gate needs. `behind` says what the recipe encodes facts behind (probe_quality.py)."""

    door: EngineDoor
    catalog: Catalog
    words: FactWords
    frame_of: Callable[[str], Awaitable[Frame | None]]
    traits: EngineTraits
    verdicts: VerdictFolder
    behind: EncodedBehind

    async def judge(self, header: Chunk) -> Verdict:
        """Probe the engine; `header` is the default header's chunk. Never raises for what it finds."""
        text = self._text()
        answer = await self._guarded("answer", probe_answer(self.door, header, text, self.traits))
        if answer[0].reason is not None:
            return Verdict(probes=tuple(answer))
        recalled = self.verdicts.recall()
        if recalled is not None:
            recalled = recalled.model_copy(update={"probes": (*answer, *recalled.probes[1:]), "recalled": True})
            if recalled.quality is not None:
                return recalled
        rows = ProbeRows(self.door, self.catalog)
        try:
            if recalled is None:
                verdict = await self._measure(rows, header, text, answer)
            else:  # it could not be measured then, in too small a slab for example
                verdict = recalled.model_copy(update={"quality": await self._quality(rows, header)})
        finally:
            rows.close()
        self.verdicts.keep(verdict)
        return verdict

    async def _measure(self, rows: ProbeRows, header: Chunk, text: ProbeText, answer: list[ProbeResult]) -> Verdict:
        probes = [
            *answer,
            *await self._guarded("distances", probe_distances(rows, text, self.traits)),
            *await self._guarded("prefix cache", probe_prefix_cache(self.door, header, text, self.traits)),
        ]
        red = any(probe.reason is not None for probe in probes)
        return Verdict(probes=tuple(probes), quality=None if red else await self._quality(rows, header))

    async def _quality(self, rows: ProbeRows, header: Chunk) -> Quality | None:
        """None where it cannot be measured, such as in too small a slab; the exact probes have passed."""
        if not self.traits.scores:
            return None
        try:
            return await probe_quality(self.door, rows, header, self.words, self.frame_of, self.behind)
        except Exception as error:  # a server without a tail is better than none
            logger.warning("inferscale: the quality probe was left out: %s", error)
            return None

    async def _guarded(
        self, name: str, probe: Awaitable[ProbeResult] | Awaitable[list[ProbeResult]]
    ) -> list[ProbeResult]:
        """A probe that cannot be carried out is red: nothing is known to be right then."""
        try:
            found = await probe
        except ProbeFault as fault:
            return [ProbeResult(name, float("inf"), 0.0, f"{name}: {fault}")]
        except Exception as error:  # whatever the engine says against a probe, it must serve text all the same
            logger.error("inferscale: the gate's probe %s failed", name, exc_info=error)
            return [ProbeResult(name, float("inf"), 0.0, f"probe {name} failed: {type(error).__name__}")]
        return found if isinstance(found, list) else [found]

    def _text(self) -> ProbeText:
        story = self.words.tokenize(STORY)
        least = STORY_TOKENS + BEHIND_TOKENS  # a tokenizer with very long words repeats itself
        return ProbeText(story[0], (story * least)[: max(len(story), least)], self.words.tokenize(QUESTION))
