"""A turn: what one user said, and what was answered; the unit that facts are made of.

Knows: which messages may become facts. System text, tool output and recalled memory never do: they are not in a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferscale_server.extraction.dates import resolve_dates
from inferscale_server.remember import DraftDefaults, Said, said_in
from inferscale_server.trigrams import fold
from inferscale_server.types import Fact, FactDraft

Sources = Literal["user", "both"]

# fmt: off
SMALL_TALK = frozenset({
    "ok", "okay", "k", "kk", "yes", "yeah", "yep", "yup", "no", "nope", "sure", "right", "fine", "great", "cool",
    "nice", "thanks", "thank you", "thx", "ty", "please", "hi", "hello", "hey", "bye", "goodbye", "good morning",
    "good night", "hm", "hmm", "uh", "lol", "haha", "go on", "continue", "next", "got it", "i see", "all right",
    "alright", "yes please", "ja", "nein", "danke", "bitte", "hallo", "tschüss", "gut", "super", "genau", "oui", "non",
    "merci", "bonjour", "d accord", "sí", "si", "gracias", "hola", "vale",
    "好", "好的", "是", "是的", "不", "谢谢", "你好", "嗯", "はい", "いいえ", "ありがとう", "ครับ", "ค่ะ",
})
# fmt: on
"""Whole messages that say nothing to remember; the model is not asked about them."""


_SENTENCE = re.compile(r"[^.!?。！？؟…\n]+(?P<end>[^\w\s]*)")
_MAY_TELL = re.compile(
    r"[,;:，、；：]|\b(?:that|remember|note|know|knew|told|forget|dass|merke?n?|weißt|wusstest|que|savais|souviens"
    r"|sabes|sabías|recuerda|che|ricorda|sapevi|lembra|sabia)\b",
    re.IGNORECASE,
)
"""In a question: it may tell something besides, as "Did you know that I moved?" and "My dog is Rex, isn't he?" do."""


def speaker_of(said: Fact | FactDraft) -> str:
    """What names nobody is the user's: facts that a program wrote into the user's own memory."""
    return said.speaker or "user"


@dataclass(frozen=True, slots=True)
class Turn:
    """The messages that may become facts, oldest first; `recalled` are the memories that the answer was made with."""

    sources: tuple[FactDraft, ...]
    recalled: tuple[str, ...] = ()

    def beside(self, recalled: Sequence[str]) -> Turn:
        """The same turn, answered with these memories."""
        return Turn(self.sources, tuple(recalled))

    @property
    def speakers(self) -> tuple[str, ...]:
        """Who speaks in it, each once."""
        return tuple(dict.fromkeys(speaker_of(draft) for draft in self.sources))

    @property
    def text(self) -> str:
        """All that was said."""
        return "\n".join(draft.text for draft in self.sources)

    def said_at(self, now: float) -> float:
        """In Unix seconds: the time of the first message that has one, else `now`."""
        return next((draft.occurred_at for draft in self.sources if draft.occurred_at is not None), now)

    def shown(self, now: float) -> str:
        """What a model is shown: one line a message, with its speaker and the dates that its words mean."""
        said_at = self.said_at(now)
        return "\n".join(
            f"{speaker_of(draft)}: "
            f"{resolve_dates(draft.text, said_at if draft.occurred_at is None else draft.occurred_at)}"
            for draft in self.sources
        )


def turns_of(messages: object, defaults: DraftDefaults, sources: Sources) -> tuple[Turn, ...]:
    """The turns of a conversation as a client sends it. An answer is never too long: it is not read, or clipped.

    Raises InvalidRequest or TooLarge that name the field, as in `messages[3].content`.
    """
    return turns_in(said_in(messages, defaults, "skipped" if sources == "user" else "clipped"), sources)


def turns_in(said: Sequence[Said], sources: Sources) -> tuple[Turn, ...]:
    """Each message of the user, with the answers to it when those count too; small talk makes no turn."""
    turns: list[list[FactDraft]] = []
    for one in said:
        if one.by_user or not turns:
            turns.append([])
        if (one.by_user or sources == "both") and not is_small_talk(one.draft.text):
            turns[-1].append(one.draft)
    return tuple(Turn(tuple(drafts)) for drafts in turns if drafts)


def is_small_talk(text: str) -> bool:
    """Does the whole message say nothing that anybody would want to remember?"""
    words = " ".join(re.findall(r"\w+", fold(text)))
    return not words or words in SMALL_TALK


def is_question(text: str) -> bool:
    """Does the whole message only ask? In doubt it does not."""
    ends = [found["end"] for found in _SENTENCE.finditer(text) if re.search(r"\w", found[0])]
    return bool(ends) and all(set(end) & set("?？؟") for end in ends) and not _MAY_TELL.search(text)
