"""From a user's messages to facts that can be found: extract, compare with what is stored, commit.

Knows: the order of the steps and what each outcome means. Refuses to know: HTTP, vLLM, how models answer. Extractions
of one owner follow one another, so that two of them cannot both store the same; other writes go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from inferscale_server.extraction.endpoint import EndpointWriter
from inferscale_server.extraction.extractor import ExtractionFailed, Extractor, LlmExtractor
from inferscale_server.extraction.judge import Judge, Verdict, same_words
from inferscale_server.extraction.salient import Salient, source_of
from inferscale_server.extraction.turn import Sources, Turn
from inferscale_server.filters import AllOf, Condition
from inferscale_server.memory import MemoryService
from inferscale_server.turns import Turns
from inferscale_server.types import AddOutcome, FactDraft, IdempotencyKey, Owner, Successor

SHOWN_CHARS = 120
LOOKED_AT = 16
"""Nearest facts that a new one is compared with: the same words have almost the same vector."""

Tell = Callable[[str], None]
"""Hears the status of each outcome; `nothing` for a turn without facts."""


@dataclass(frozen=True, slots=True)
class _Judged:
    """A new fact and what was decided about it."""

    draft: FactDraft
    verdict: Verdict


@dataclass
class Extraction:
    """One a server. `sources` says whose messages become facts. `writer`: the endpoint that is asked, to be closed."""

    memory: MemoryService
    extractor: Extractor
    judge: Judge
    sources: Sources = "user"
    tell: Tell = lambda status: None
    writer: EndpointWriter | None = None
    _lines: Turns = field(default_factory=Turns)

    async def warm_up(self) -> None:
        """Before the first chat: what the served model needs for its first turn. Asks no endpoint."""
        if self.writer is None and isinstance(self.extractor, LlmExtractor):
            await self.extractor.warm_up()

    async def remember(
        self, owner: Owner, turns: Sequence[Turn], idempotency: IdempotencyKey | None = None, since: int | None = None
    ) -> tuple[AddOutcome, ...]:
        """Store the facts of these turns; each turn is committed before the next is read.

        A turn that gave nothing usable has an outcome `failed` with the reason. `since` is what `MemoryService.wipes`
        said when the turns came in: what was said before all was deleted is not stored after. A repeat with the same
        key gets the first one's outcomes, without texts. Raises Conflict for a key that came with another body, and
        StorageFull or Unavailable with the turns before stored.
        """
        since = self.memory.wipes(owner) if since is None else since
        async with self._lines.of(owner):
            if idempotency is not None:
                earlier = await self.memory.between_writes(lambda store: store.earlier(owner, idempotency, ()))
                if earlier is not None:
                    return earlier
            outcomes = [outcome for turn in turns for outcome in await self._turn(owner, turn, since)]
            if idempotency is not None:
                await self.memory.between_writes(lambda store: store.keep(owner, idempotency, outcomes))
        return tuple(outcomes)

    async def aclose(self) -> None:
        """Ask no endpoint any more."""
        if self.writer is not None:
            await self.writer.aclose()

    async def _turn(self, owner: Owner, turn: Turn, since: int) -> Sequence[AddOutcome]:
        try:
            found = await self.extractor.extract(turn)
        except ExtractionFailed as error:
            return self._told([AddOutcome(None, _clip(turn.text), "failed", str(error))])
        drafts = [_draft(fact, turn) for fact in found.facts]
        outcomes = await self._store(owner, drafts, since) if drafts else []
        lost = [AddOutcome(None, _clip(turn.text), "failed", reason) for reason in dict.fromkeys(found.lost)]
        return self._told([*outcomes, *lost])

    def _told(self, outcomes: Sequence[AddOutcome]) -> Sequence[AddOutcome]:
        if not outcomes:
            self.tell("nothing")
        for outcome in outcomes:
            self.tell(outcome.status)
        return outcomes

    async def _store(self, owner: Owner, drafts: Sequence[FactDraft], since: int) -> list[AddOutcome]:
        """One commit. Outcomes of the drafts in their order, then those of what they took the place of."""
        judged = [_Judged(draft, await self._verdict(owner, draft)) for draft in drafts]
        fresh = [one for one in judged if one.verdict.relation != "same"]
        successors = [Successor(old.id, at) for at, one in enumerate(fresh) for old in one.verdict.replaced]
        added = await self.memory.add(owner, [one.draft for one in fresh], None, successors, since) if fresh else ()
        stored = iter(added[: len(fresh)])
        outcomes = [_known(one) if one.verdict.relation == "same" else _reasoned(next(stored), one) for one in judged]
        return [*outcomes, *added[len(fresh) :]]

    async def _verdict(self, owner: Owner, draft: FactDraft) -> Verdict:
        """By words first; only then by the judge, who sees the nearest facts of the same scope."""
        where = AllOf((Condition("agent_id", "eq", draft.agent_id), Condition("run_id", "eq", draft.run_id)))
        hits = await self.memory.search(owner, draft.text, LOOKED_AT, None, where)
        same = same_words(draft, [hit.fact for hit in hits])
        if same is not None:
            return Verdict("same", same)
        return await self.judge.judge(draft, hits)


def _draft(fact: Salient, turn: Turn) -> FactDraft:
    """Session, scope, time and metadata are those of the message that the fact was made of."""
    return replace(source_of(fact, turn), text=fact.text, speaker=fact.speaker)


def _known(judged: _Judged) -> AddOutcome:
    assert judged.verdict.old is not None, judged
    return AddOutcome(judged.verdict.old.id, judged.draft.text, "duplicate", "says the same as a stored fact")


def _reasoned(outcome: AddOutcome, judged: _Judged) -> AddOutcome:
    """Also why the fact was not compared with older ones."""
    return replace(outcome, reason=outcome.reason or judged.verdict.reason)


def _clip(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
