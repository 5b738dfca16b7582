"""How a new fact stands to those that are stored: new, the same, or in the place of an older one.

Knows: rules and a model's word. Refuses to decide by nearness alone: "Bob manages Ann" is nearer to "Ann manages Bob"
than its own passive form is. Vectors only choose what the model is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inferscale_server.errors import Unavailable
from inferscale_server.extraction.answer import BadAnswer, read_json
from inferscale_server.extraction.contradiction import relation_of
from inferscale_server.extraction.prompt import Writer, judge_prompt
from inferscale_server.extraction.salient import wording
from inferscale_server.extraction.turn import speaker_of
from inferscale_server.types import Fact, FactDraft, Hit
from inferscale_server.wording import day

NEIGHBOURS = 4
NEIGHBOUR_SCORE = 0.3
"""Cosine similarity below which a stored fact is not shown to a model."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`old` is the fact that says the same, or that the new one takes the place of; None for `new`.

    `reason`: the model could not be asked, and the fact counts as new. `others`: more facts whose place it takes.
    """

    relation: Literal["new", "same", "replaces"] = "new"
    old: Fact | None = None
    reason: str | None = None
    others: tuple[Fact, ...] = ()

    @property
    def replaced(self) -> tuple[Fact, ...]:
        """All facts that the new one takes the place of."""
        return (self.old, *self.others) if self.relation == "replaces" and self.old is not None else ()


class Judge(Protocol):
    """Decides about one fact."""

    async def judge(self, new: FactDraft, near: Sequence[Hit]) -> Verdict:
        """`near` are stored facts, nearest first. Never raises: a fact about which nothing can be said is new."""


class RuleJudge:
    """For models that cannot be trusted with it: rules that know a few plain cases; all else is new."""

    async def judge(self, new: FactDraft, near: Sequence[Hit]) -> Verdict:
        """See Judge."""
        facts = [hit.fact for hit in near if speaker_of(hit.fact) == speaker_of(new)]
        stands = [(fact, relation_of(new.text, fact.text)) for fact in facts]
        same = next((fact for fact, how in stands if how == "same"), None)
        if same is not None:
            return Verdict("same", same)
        outdated = [fact for fact, how in stands if how == "replaces" and _later(new, fact)]
        return Verdict("replaces", outdated[0], others=tuple(outdated[1:])) if outdated else Verdict()


@dataclass(frozen=True, slots=True)
class ModelJudge:
    """Shows the nearest facts to a model, which answers in guided JSON; one retry."""

    write: Writer

    async def judge(self, new: FactDraft, near: Sequence[Hit]) -> Verdict:
        """See Judge."""
        facts = [hit.fact for hit in near[:NEIGHBOURS] if hit.score >= NEIGHBOUR_SCORE]
        if not facts:
            return Verdict()
        shown = [_shown(fact) for fact in facts]
        reason = ""
        for again in (False, True):
            try:
                return _verdict(await self.write(judge_prompt(_shown(new), shown, again)), new, facts)
            except BadAnswer as error:
                reason = str(error)
            except Unavailable as error:
                reason = error.message
        return Verdict(reason=f"stored without comparing it with older ones: {reason}")


def same_words(new: FactDraft, stored: Sequence[Fact]) -> Fact | None:
    """The stored fact that differs in case, punctuation and blanks at most, and was said by the same or by nobody."""
    words = wording(new.text)
    for fact in stored:
        speakers_agree = new.speaker == fact.speaker or None in (new.speaker, fact.speaker)
        if speakers_agree and wording(fact.text) == words:
            return fact
    return None


def _verdict(answer: str, new: FactDraft, near: Sequence[Fact]) -> Verdict:
    """Raises BadAnswer."""
    found = read_json(answer)
    relation = found.get("relation") if isinstance(found, dict) else None
    number = found.get("number") if isinstance(found, dict) else None
    if relation == "new":
        return Verdict()
    if relation not in ("same", "replaces") or isinstance(number, bool) or not isinstance(number, int):
        raise BadAnswer("the answer names no relation")
    if not 1 <= number <= len(near):
        raise BadAnswer("the answer names a note that was not shown")
    old = near[number - 1]
    if relation == "same":
        return Verdict() if _swapped(new.text, old.text) else Verdict("same", old)
    return Verdict() if _older(new, old) else Verdict("replaces", old)


def _swapped(new: str, old: str) -> bool:
    """The same words in another order say who did it to whom the other way round."""
    return wording(new) != wording(old) and sorted(wording(new).split()) == sorted(wording(old).split())


def _older(new: FactDraft, old: Fact) -> bool:
    """What was said before cannot make untrue what was said after it, in whichever order they come in."""
    return new.occurred_at is not None and old.occurred_at is not None and new.occurred_at < old.occurred_at


def _later(new: FactDraft, old: Fact) -> bool:
    """Was it surely said after the other? What has no time was said when it came in."""
    said_at = old.created_at if old.occurred_at is None else old.occurred_at
    return new.occurred_at is None or new.occurred_at >= said_at


def _shown(fact: Fact | FactDraft) -> str:
    said_on = day(fact.occurred_at)
    return f"{fact.text} ({said_on})" if said_on else fact.text
