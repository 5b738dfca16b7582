"""What is to be encoded: a chunk's own tokens, what they stand behind, and the engine request that encodes them.

Pure words and arithmetic; refuses to know the queue (encode.py) and vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from inferscale_server.behind import Behind, Line, mark_of
from inferscale_server.catalog import Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command, Extent, Injection
from inferscale_server.types import Fact
from inferscale_server.wording import Wording

EncodeResult = Literal["stored", "loaded", "incomplete", "failed", "dropped"]
"""What became of a chunk; only "loaded" had no encode request."""

TokenKind = Literal["own", "prefix", "spare"]
"""What a token that an encode request computes is for: a chunk that is kept, the text before it, or throw-away."""


class EncodeEngine(Protocol):
    """The serving engine as the encoder sees it."""

    async def encode(self, prompt_ids: Sequence[int], command: Command) -> None:
        """Prefill the prompt with the command's injection and captures; under a salt of its own."""

    async def captured(self, attempts: Sequence[tuple[int, tuple[Extent, ...]]]) -> list[bool]:
        """For each (stamp, rows): was it written completely, on every rank?"""

    async def wipe(self, extents: Sequence[Extent]) -> None:
        """Zero these rows on every rank."""


@dataclass(frozen=True, slots=True)
class Job:
    """One chunk to encode: its own tokens. `mark` is the digest of a fact's own line."""

    key: ChunkKey
    token_ids: tuple[int, ...]
    mark: str = ""

    @property
    def line(self) -> Line:
        """The fact as others are encoded behind it."""
        return Line(self.key.name, self.token_ids, self.mark)


@dataclass(frozen=True, slots=True)
class Errand:
    """A job and what it is encoded behind. `staged`: of a generation that does not serve yet; `urgent`: worth evicting
    others for."""

    job: Job
    behind: Behind = field(default_factory=Behind)
    staged: bool = False
    urgent: bool = True

    @property
    def length(self) -> int:
        """Tokens of the prompt that encodes it."""
        return len(self.behind.token_ids) + len(self.job.token_ids) + SPARE_TOKENS


@dataclass(slots=True)
class Run:
    """Chunks that one request encodes: each stands behind all that is before it, so that none is computed twice."""

    behind: Behind
    chunks: list[Chunk] = field(default_factory=list)

    def request(self, lead: Sequence[Chunk]) -> tuple[tuple[int, ...], Command]:
        """The prompt and its command. `lead` holds the chunks of the prompt's first tokens: they are injected."""
        injected = tuple(token for chunk in lead for token in chunk.token_ids)
        prompt = list(self.behind.token_ids)
        assert tuple(prompt[: len(injected)]) == injected, "chunks of other tokens lead the prompt"
        captures = []
        for chunk in self.chunks:
            captures.append(Capture(chunk.stamp, len(prompt), chunk.extents))
            prompt += chunk.token_ids
        prompt += prompt[-1:] * SPARE_TOKENS
        extents = tuple(extent for chunk in lead for extent in chunk.extents)
        return tuple(prompt), Command(Injection(injected, extents) if injected else None, tuple(captures))


def runs_of(placed: Iterable[tuple[Errand, Chunk]]) -> list[Run]:
    """As few requests as encode all of these: a fact that stands right behind another goes along with it."""
    runs: list[Run] = []
    ends: dict[Behind, Run] = {}
    for errand, chunk in placed:
        run = ends.pop(errand.behind, None) if errand.behind.lines else None
        if run is None:
            run = Run(errand.behind)
            runs.append(run)
        run.chunks.append(chunk)
        ends[errand.behind.then(errand.job.line)] = run
    return runs


def together(errands: Iterable[Errand]) -> list[Errand]:
    """Those that one batch encodes without computing a text twice.

    The others stand behind a chunk of this batch that the next batch can inject, and wait for that.
    """
    chosen: list[Errand] = []
    ends: dict[tuple[str, ...], bool] = {}  # what stands right behind a chosen one -> does one follow there?
    names: set[str] = set()
    for errand in errands:
        ids, name = errand.behind.fact_ids, errand.job.key.name
        follows = ends.get(ids) is False
        if follows or not any(ids[: place + 1] in ends for place, seen in enumerate(ids) if seen in names):
            ends[ids] = True
            ends[(*ids, name)] = False
            names.add(name)
            chosen.append(errand)
    return chosen


def line_of(fact: Fact, wording: Wording) -> str:
    """The fact as it stands in a prompt."""
    return wording.line(fact.text, fact.speaker, fact.occurred_at)


def marks_of(facts: Iterable[Fact], wording: Wording) -> dict[str, str]:
    """Digest of each fact's line, by fact id: KV files that bear another are of an older wording."""
    return {fact.id: mark_of(line_of(fact, wording)) for fact in facts}
