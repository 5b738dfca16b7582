"""Extractors: from a turn to facts, behind one interface.

Knows: retries, and what becomes of an answer that cannot be read. Refuses to know: what is stored already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from inferscale_server.errors import InferScaleError, Unavailable
from inferscale_server.extraction.answer import BadAnswer, read_facts, salvage_facts
from inferscale_server.extraction.dates import resolve_dates
from inferscale_server.extraction.prompt import Writer, cut_of, extract_prompt, first_prompt
from inferscale_server.extraction.salient import (
    Extracted,
    Salient,
    dates_of,
    holds_recalled,
    objection,
    repeats_recalled,
    source_of,
)
from inferscale_server.extraction.turn import Turn, is_question, speaker_of

CUT_SHORT = "of an answer that was cut short the whole facts are kept"


class ExtractionFailed(InferScaleError):
    """Nothing could be made of a turn; the message is the reason, for the client."""


class Extractor(Protocol):
    """Makes facts of turns."""

    async def extract(self, turn: Turn) -> Extracted:
        """The facts of one turn. Raises ExtractionFailed."""


class VerbatimExtractor:
    """Each message is a fact as it stands, but for questions, and for answers that say again what was recalled."""

    async def extract(self, turn: Turn) -> Extracted:
        """See Extractor."""
        facts: list[Salient] = []
        lost: list[str] = []
        for draft in turn.sources:
            repeats = repeats_recalled(draft.text, turn) or holds_recalled(draft.text, turn)
            if draft.speaker == "assistant" and repeats:
                lost.append("an answer was left out: it repeats a recalled memory")
            elif not is_question(draft.text):
                facts.append(Salient(draft.text, speaker_of(draft)))
        return Extracted(tuple(facts), tuple(lost))


@dataclass(frozen=True, slots=True)
class LlmExtractor:
    """A model with guided JSON: one retry, then what is whole of a broken answer, then the reason."""

    write: Writer
    now: Callable[[], float] = time.time

    async def warm_up(self) -> None:
        """Let the engine compile the grammar of answers now: later, chats would wait for it."""
        with suppress(Unavailable):
            await self.write(first_prompt())

    async def extract(self, turn: Turn) -> Extracted:
        """See Extractor."""
        found = checked(await self._ask(turn), turn, self.now())
        return Extracted(found.facts, (*found.lost, *cut_of(turn, self.now())))

    async def _ask(self, turn: Turn) -> Extracted:
        answer, reason = "", ""
        for again in (False, True):
            try:
                answer = await self.write(extract_prompt(turn, self.now(), again))
                return read_facts(answer, turn.speakers)
            except BadAnswer as error:
                reason = str(error)
            except Unavailable as error:
                reason = error.message
        try:
            found = salvage_facts(answer, turn.speakers)
        except BadAnswer:
            raise ExtractionFailed(reason) from None
        return Extracted(found.facts, (*found.lost, f"{reason}; {CUT_SHORT}"))


def checked(found: Extracted, turn: Turn, now: float) -> Extracted:
    """The facts that say what was said, with their dates resolved; the others are lost, with the reason."""
    facts: list[Salient] = []
    lost, dates = list(found.lost), dates_of(turn, now)
    for fact in found.facts:
        reason = objection(fact, turn, dates)
        if reason is not None:
            lost.append(f"a fact was left out: {reason}")
            continue
        said_at = source_of(fact, turn).occurred_at
        facts.append(Salient(resolve_dates(fact.text, now if said_at is None else said_at), fact.speaker))
    return Extracted(tuple(facts), tuple(lost))
