"""A turn: what one user said, and what was answered; the unit that facts are made of.

Knows: which messages may become facts. System text, tool output and recalled memory never do: they are not in a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from inferscale_server.remember import Said
from inferscale_server.trigrams import fold
from inferscale_server.types import FactDraft

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
        return tuple(dict.fromkeys(draft.speaker or "user" for draft in self.sources))

    @property
    def text(self) -> str:
        """All that was said."""
        return "\n".join(draft.text for draft in self.sources)


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
