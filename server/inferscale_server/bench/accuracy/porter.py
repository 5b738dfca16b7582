"""Porter's stemmer: English words without their endings (Porter, An algorithm for suffix stripping, 1980). Pure.

The algorithm as published, step by step. Knows words in lower case; refuses to know what they are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

Condition = Callable[[str], bool]
Rule = tuple[str, str]
"""An ending, and what takes its place."""

CACHED_WORDS = 50_000

STEP_2: Sequence[Rule] = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("abli", "able")),
    *(("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate")),
    *(("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al")),
    *(("iviti", "ive"), ("biliti", "ble")),
)
STEP_3: Sequence[Rule] = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")),
)
STEP_4: Sequence[Rule] = tuple(
    (ending, "")
    for ending in (
        *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate"),
        *("iti", "ous", "ive", "ize"),
    )
)


@lru_cache(CACHED_WORDS)
def stem(word: str) -> str:
    """The stem of one word in lower case, as Porter's own program gives it: words of one or two letters stay."""
    if len(word) <= 2:
        return word
    word = _step_1c(_step_1b(_step_1a(word)))
    word = _longest(word, STEP_2, lambda kept, ending: measure(kept) > 0)
    word = _longest(word, STEP_3, lambda kept, ending: measure(kept) > 0)
    word = _longest(
        word, STEP_4, lambda kept, ending: measure(kept) > 1 and (ending != "ion" or kept[-1:] in ("s", "t"))
    )
    return _step_5(word)


def shape(word: str) -> str:
    """`c` for a consonant and `v` for a vowel, letter by letter; `y` is a vowel behind a consonant."""
    kinds = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and kinds.endswith("c"))
        kinds += "v" if vowel else "c"
    return kinds


def measure(kept: str) -> int:
    """Porter's m: how often a vowel is followed by a consonant."""
    return shape(kept).count("vc")


def _has_vowel(kept: str) -> bool:
    return "v" in shape(kept)


def _ends_doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and shape(word).endswith("c")


def _ends_short(word: str) -> bool:
    """Porter's *o: consonant, vowel, consonant, and the last one is not w, x or y."""
    return shape(word).endswith("cvc") and word[-1] not in "wxy"


def _longest(word: str, rules: Sequence[Rule], allowed: Callable[[str, str], bool]) -> str:
    """Of the rules whose ending the word has, only the longest is looked at."""
    fitting = [rule for rule in rules if word.endswith(rule[0])]
    if not fitting:
        return word
    ending, instead = max(fitting, key=lambda rule: len(rule[0]))
    kept = word.removesuffix(ending)
    return kept + instead if allowed(kept, ending) else word


def _step_1a(word: str) -> str:
    """Plurals."""
    return _longest(word, (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", "")), lambda kept, ending: True)


def _step_1b(word: str) -> str:
    """Past tense and -ing."""
    if word.endswith("eed"):
        return word[:-1] if measure(word[:-3]) > 0 else word
    kept = re.sub("(ed|ing)$", "", word)
    if kept == word or not _has_vowel(kept):
        return word
    if kept.endswith(("at", "bl", "iz")):
        return kept + "e"
    if _ends_doubled(kept) and kept[-1] not in "lsz":
        return kept[:-1]
    return kept + "e" if measure(kept) == 1 and _ends_short(kept) else kept


def _step_1c(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _has_vowel(word[:-1]) else word


def _step_5(word: str) -> str:
    """A last e, and a doubled l."""
    if word.endswith("e"):
        kept = word[:-1]
        if measure(kept) > 1 or (measure(kept) == 1 and not _ends_short(kept)):
            word = kept
    return word[:-1] if word.endswith("ll") and measure(word) > 1 else word
