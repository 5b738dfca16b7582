"""What is to be encoded: a chunk's own tokens, what they stand behind, and the engine request that encodes them.

Pure words and arithmetic; refuses to know the queue (encode.py) and vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, Protocol

from inferscale_server.behind import Behind, Line, mark_of
from inferscale_server.catalog import Chunk, ChunkKey
from inferscale_server.command import SPARE_TOKENS, Capture, Command, Extent, Injection
from inferscale_server.extents import rows_between
from inferscale_server.types import Fact
from inferscale_server.wording import Wording

EncodeResult = Literal["stored", "loaded", "incomplete", "failed", "dropped"]
"""What became of a chunk; only "loaded" had no encode request."""

Outcome = Literal["stored", "incomplete"] | None
"""What an encode request made of a chunk. None: it came whole, but perhaps behind something that did not, which its
request injected."""

TokenKind = Literal["own", "prefix", "spare"]
"""What a token that an encode request computes is for: a chunk that is kept, the text before it, or throw-away."""


class EncodeEngine(Protocol):
    """The serving engine as the encoder sees it."""

    def most_tokens(self) -> int | None:
        """How many tokens one request may compute now, throw-away ones aside; None: as many as it has. True until the
        event loop turns to something else."""

    def starved(self) -> bool:
        """Do chats leave encoding next to no time? Then each request waits for seconds, however little it computes."""

    async def encode(self, prompt_ids: Sequence[int], command: Command, adapter: str = "") -> None:
        """Prefill the prompt with the command's injection and captures; under a salt of its own. `adapter`: the
        fingerprint of the one that reads it."""

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


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """One prompt for the engine, with what it injects and captures."""

    prompt_ids: tuple[int, ...]
    command: Command


@dataclass(slots=True)
class Run:
    """Chunks that stand one behind the other, each behind all that is before it, so that none is computed twice."""

    behind: Behind
    chunks: list[Chunk] = field(default_factory=list)
    scratch: Chunk | None = None
    """Rows for what is computed before the first chunk, as long as the run lasts."""

    @property
    def captured(self) -> list[Chunk]:
        """All that gets rows, in the order of the prompt."""
        return [*([] if self.scratch is None else [self.scratch]), *self.chunks]

    def uncovered(self, lead: Sequence[Chunk]) -> tuple[int, ...]:
        """What stands before the first chunk and behind `lead`: it is computed for the chunks' sake."""
        return self.behind.token_ids[sum(len(chunk.token_ids) for chunk in lead) :]

    def requests(self, lead: Sequence[Chunk], most_tokens: int | None = None) -> Iterator[EncodeRequest]:
        """What the engine is asked, one after the other: one request, or several that compute `most_tokens` at most.

        `lead` holds the chunks of the prompt's first tokens: they are injected. Each request injects what those before
        it captured, so that all together capture what one would. What has no rows, as uncovered tokens without
        `scratch`, cannot be injected: then there is one request.
        """
        prompt, injected = list(self.behind.token_ids), sum(len(chunk.token_ids) for chunk in lead)
        assert prompt[:injected] == _tokens(lead), "chunks of other tokens lead the prompt"
        if self.scratch is None and injected < len(prompt):
            most_tokens = None
        laid = _laid(lead, 0) + _laid(self.captured, injected if self.scratch else len(prompt))
        prompt += _tokens(self.chunks)
        for part in _parts(injected, len(prompt), most_tokens):
            rows = tuple(extent for one in laid for extent in one.rows(range(part.start)))
            captures = (Capture(one.chunk.stamp, max(one.start, part.start), one.rows(part)) for one in laid)
            yield EncodeRequest(
                (*prompt[: part.stop], *prompt[part.stop - 1 : part.stop] * SPARE_TOKENS),
                Command(
                    Injection(tuple(prompt[: part.start]), rows) if part.start else None,
                    tuple(capture for capture in captures if capture.extents),
                ),
            )

    def outcomes(self, complete: Set[int]) -> dict[int, Outcome]:
        """By stamp what became of each chunk; `complete` has the stamps of all that came whole."""
        if self.scratch is not None and self.scratch.stamp not in complete:
            return {chunk.stamp: "incomplete" for chunk in self.chunks}
        outcomes: dict[int, Outcome] = {
            chunk.stamp: None if chunk.stamp in complete else "incomplete" for chunk in self.chunks
        }
        for chunk in takewhile(lambda chunk: chunk.stamp in complete, self.chunks):
            outcomes[chunk.stamp] = "stored"
        return outcomes


@dataclass(frozen=True, slots=True)
class _Laid:
    """A chunk where it stands in a prompt."""

    start: int
    chunk: Chunk

    def rows(self, positions: range) -> tuple[Extent, ...]:
        """Those of its rows that hold these positions of the prompt."""
        return rows_between(self.chunk.extents, positions.start - self.start, positions.stop - self.start)


def _tokens(chunks: Iterable[Chunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def _laid(chunks: Iterable[Chunk], start: int) -> list[_Laid]:
    """One behind the other, from a position of the prompt on."""
    laid = []
    for chunk in chunks:
        laid.append(_Laid(start, chunk))
        start += len(chunk.token_ids)
    return laid


def _parts(start: int, stop: int, most_tokens: int | None) -> list[range]:
    """Positions start … stop - 1 in as few parts as have at most so many, all of about one length."""
    count = 1 if most_tokens is None else -(-(stop - start) // most_tokens)
    size = -(-(stop - start) // count)
    return [range(at, min(at + size, stop)) for at in range(start, stop, size)]


def runs_of(placed: Iterable[tuple[Errand, Chunk]]) -> list[Run]:
    """As few runs as encode all of these: a fact that stands right behind another goes along with it."""
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
