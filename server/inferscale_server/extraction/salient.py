"""One fact as an extractor gives it, and whether it says no more than was said.

Knows: words, numbers and names. Refuses to know: meaning; that is the model's part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from inferscale_server.extraction.dates import said_on, without_dates
from inferscale_server.extraction.named_dates import NamedDate, named_dates, without_named_dates
from inferscale_server.extraction.turn import Turn, speaker_of
from inferscale_server.trigrams import fold
from inferscale_server.types import FactDraft

STEM_CHARS = 4
"""Words that begin with the same letters count as the same: likes, liked, liking."""
LEAST_WORDS = 3
"""Of a sentence; small models list single nouns."""
LEAST_SHARE = 1 / 3
"""Of a fact's words that must have been said."""
REPEATED_SHARE = 0.8
"""Of a fact's words: with so many from one recalled memory it is that memory again. So it is the other way round."""

# fmt: off
_FILLERS = frozenset({
    "user", "assistant", "the", "that", "this", "with", "from", "have", "has", "had", "their", "they", "them", "about",
    "which", "would", "named", "called", "and", "for", "was", "were", "his", "her", "she", "are", "der", "die", "das",
    "und", "ist", "ein", "eine", "les", "des", "est", "una", "los", "las", "por", "con",
})
# fmt: on
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


@dataclass(frozen=True, slots=True)
class Salient:
    """A sentence worth keeping, and who said it."""

    text: str
    speaker: str


@dataclass(frozen=True, slots=True)
class Extracted:
    """What an extractor found in a turn; `lost` says of each fact that was not usable why not."""

    facts: tuple[Salient, ...] = ()
    lost: tuple[str, ...] = ()


def dates_of(turn: Turn, now: float) -> frozenset[NamedDate]:
    """The dates that the turn names, that its relative words mean, and on which it was said: a model was shown them.

    `now` (Unix seconds) is when it was said, unless its messages know better.
    """
    day = named_dates(said_on(turn.said_at(now)))
    year = next((one.year for one in day if one.year is not None), None)
    return day | named_dates(turn.shown(now), year)


def objection(fact: Salient, turn: Turn, dates: frozenset[NamedDate]) -> str | None:
    """Why this fact must not be kept: it says what nobody said, or what was recalled and not said. None: it may.

    `dates` are the turn's: in whatever way a fact writes them, they count as said.
    """
    if len(fact.text.split()) < LEAST_WORDS and not _UNSPACED.search(fact.text):
        return "it is no sentence"
    undated = without_named_dates(fact.text, dates)
    told = _stems(undated) - _stems(" ".join(turn.speakers))
    said = _stems(turn.text)
    if not told or len(told & said) < LEAST_SHARE * len(told):
        return "it is not in the words of the turn"
    if _exact(undated) - _exact_source(turn):
        return "it names what was not said"
    if repeats_recalled(fact.text, turn):
        return "it repeats a recalled memory"
    return None


def repeats_recalled(text: str, turn: Turn) -> bool:
    """Does the text say again what was recalled for this turn, and not what the user said in it?"""
    told = _stems(text) - _stems(" ".join(turn.speakers))
    return not told <= _own(turn) and any(_most(told, _stems(one)) for one in turn.recalled)


def holds_recalled(text: str, turn: Turn) -> bool:
    """Is one of the recalled memories in the text, among other words, and did the user not say it in this turn?"""
    told, own = _stems(text), _own(turn)
    recalled = (_stems(one) for one in turn.recalled)
    return any(len(one) > 1 and not one <= own and _most(one, told) for one in recalled)


def source_of(fact: Salient, turn: Turn) -> FactDraft:
    """The message that the fact was made of: its speaker's, and of those the one with most of its words."""
    told = _stems(fact.text)
    own = [draft for draft in turn.sources if speaker_of(draft) == fact.speaker] or list(turn.sources)
    return max(own, key=lambda draft: len(told & _stems(draft.text)))


def wording(text: str) -> str:
    """What two texts share that differ in case, punctuation and blanks alone."""
    return " ".join(re.findall(r"\w+", fold(text)))


def _stems(text: str) -> frozenset[str]:
    """Beginnings of the words, without fillers; of unspaced scripts all pairs of characters."""
    folded = fold(without_dates(text))
    pairs = {run[at : at + 2] for run in _UNSPACED.findall(folded) for at in range(max(len(run) - 1, 1))}
    words = re.findall(r"\w+", _UNSPACED.sub(" ", folded))
    return frozenset({word[:STEM_CHARS] for word in words if len(word) > 2 and word not in _FILLERS} | pairs)


def _own(turn: Turn) -> frozenset[str]:
    return _stems("\n".join(draft.text for draft in turn.sources if draft.speaker != "assistant"))


def _most(some: frozenset[str], others: frozenset[str]) -> bool:
    return len(some & others) >= REPEATED_SHARE * len(some)


def _exact(text: str) -> frozenset[str]:
    """Numbers, and names: words with a capital that do not begin the text."""
    numbers = re.findall(r"\d+", text)
    names = (name for name in re.findall(r"(?<=[^.!?]\s)[^\W\d_]\w+", text) if name[0].isupper())
    return frozenset({*numbers, *(fold(name)[:STEM_CHARS] for name in names)} - _stem_set(_FILLERS))


def _exact_source(turn: Turn) -> frozenset[str]:
    words = re.findall(r"[^\W\d_]\w*", fold(" ".join((turn.text, *turn.speakers))))
    return frozenset({*re.findall(r"\d+", turn.text), *(word[:STEM_CHARS] for word in words)})


def _stem_set(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word[:STEM_CHARS] for word in words)
