"""Two sentences that say the same, or of which the later one makes the earlier one untrue: by rules, where the model is
too small to be asked.

Knows: English negation and passive, opposed words of six languages, and what a person has one of. Refuses to guess:
whatever no rule is sure of stays beside the other. Nearness of vectors is not asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from inferscale_server.extraction.dates import resolve_dates
from inferscale_server.trigrams import fold

Relation = Literal["new", "same", "replaces"]
Words = tuple[str, ...]

MAX_CHARS = 300
"""Longer texts say more than one thing, and would take the rules long."""

# fmt: off
_OPPOSED = tuple(
    (frozenset(one.split()), frozenset(other.split()))
    for one, other in (
        ("love like enjoy adore", "hate dislike detest loathe"),
        ("loves likes enjoys adores", "hates dislikes detests loathes"),
        ("always", "never"), ("married", "single divorced unmarried"), ("employed", "unemployed"),
        ("liebe mag", "hasse"), ("liebt mag", "hasst"),
        ("aime adore", "déteste hais"),
        ("amo adoro", "odio detesto odeio"), ("ama adora", "odia detesta odeia"),
    )
)
_NEGATIONS = frozenset({
    "not", "never", "no", "nothing", "nobody", "without", "nicht", "nie", "kein", "keine", "keinen", "pas", "jamais",
    "nunca", "non", "não", "mai",
})
_HEDGES = frozenset({
    "sometimes", "occasionally", "some", "partly", "parts", "half", "maybe", "perhaps", "might", "may", "could", "if",
    "manchmal", "vielleicht", "parfois", "veces", "volte", "vezes",
})
"""With one of these both of two opposed sentences can hold."""
_SOMEBODY = frozenset({
    "he", "she", "it", "they", "this", "that", "these", "those", "there", "his", "her", "its", "their",
    "er", "sie", "es", "il", "elle", "ils", "elles", "él", "ella", "lui", "lei", "ele", "ela",
})
"""At the beginning of a sentence: who is meant was said in another one."""
_OF_WHICH_ONE_HAS_SEVERAL = (
    "friend", "colleague", "coworker", "brother", "sister", "sibling", "son", "daughter", "child", "kid", "baby",
    "cousin", "uncle", "aunt", "nephew", "niece", "grandson", "granddaughter", "grandchild", "grandfather",
    "grandmother", "grandparent", "parent", "neighbor", "neighbour", "teacher", "student", "classmate", "roommate",
    "flatmate", "client", "customer", "patient", "ex",
)
# fmt: on
_SEVERAL = re.compile(rf"\b(?i:{'|'.join(_OF_WHICH_ONE_HAS_SEVERAL)})(?:s|ren)?\b(?:'s)?(?! [^\W\d_a-zß-ÿ])")
"""Unless a name follows: my sister Ann is one."""

_SPELLED_OUT = (
    (re.compile(r"[’`]"), "'"),
    (re.compile(r"\b(?:can't|cannot)\b", re.IGNORECASE), "can not"),
    (re.compile(r"n't\b", re.IGNORECASE), " not"),
    (re.compile(r"(?<=\bI)'m\b", re.IGNORECASE), " am"),
    (re.compile(r"'re\b", re.IGNORECASE), " are"),
    (re.compile(r"'ve\b", re.IGNORECASE), " have"),
    (re.compile(r"\bj'(?=\w)", re.IGNORECASE), "je "),
)
_NOW = re.compile(r"\b(?:now|currently|any ?more)\b", re.IGNORECASE)
"""Says nothing that its sentence does not."""
_AUXILIARIES = frozenset({"am", "is", "are", "do", "does", "can", "have", "has"})
_HALF_DENIED = frozenset({"only", "just", "merely", "simply", "even", "necessarily", "always", "all"})
"""Behind `not`: what is denied is this word alone."""
_PASSIVE = re.compile(r"(?P<whom>.+) (?P<is>is|are|was|were) (?P<verb>\w+)ed by (?P<who>.+)")

_NAME = r"(?P<value>(?-i:[^\W\d_a-zß-ÿ])[^,;:]*)"
_MARKED = r"(?P<value>[^,;:]*[\d@][^,;:]*)"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_AGE = rf"(?P<value>\d{{1,3}}|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen|(?:{_TENS})\S*)"
_OWN = r"(?P<subject>(?:my|our|.+'s)"
_ONE_VALUED = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<subject>I|we|.+(?= lives| is)) (?:lives?|(?:am|is|are) living) in {_NAME}",
        rf"(?P<subject>I|we|.+(?= works)) works? (?:at|for) {_NAME}",
        rf"{_OWN} .*name) is {_NAME}",
        rf"{_OWN} .+) is (?:called|named) {_NAME}",
        rf"(?P<subject>.+) (?:am|is) {_AGE} years? old",
        rf"{_OWN} favou?rite (?:colou?r|season|number)) is (?P<value>[^,;:]+)",
        rf"{_OWN} (?:phone number|email|email address|birthday)) is {_MARKED}",
    )
)
"""Of what somebody has one, as whole sentences."""
_MOST_WORDS = 4
"""Of who it is, and of what it is; longer ones say more than a rule understands."""
_CLAUSES = (
    "and or but with when while also too since until during because by either both as who which that on before after "
    "for at than like to used will would want wants"
)
_SAYS_MORE = _HEDGES | _NEGATIONS | set(_CLAUSES.split())
_ANYBODY = frozenset(
    ["a", "an", "every", "each", "one", "another", "someone", "somebody", "everyone", "everybody", "people"]
)


@dataclass(frozen=True, slots=True)
class _Holding:
    """What a sentence says somebody has one of."""

    rule: int
    subject: Words
    value: Words


def relation_of(new: str, old: str) -> Relation:
    """How a sentence stands to one that the same speaker said before it: `same`, `replaces` it, or `new`."""
    one, other = _words(new), _words(old)
    if one == other:
        return "same"
    if max(len(new), len(old)) > MAX_CHARS or _unsure(new) or _unsure(old):
        return "new"
    if other in _active(one) or one in _active(other):
        return "same"
    one, other = _words(_NOW.sub(" ", new)), _words(_NOW.sub(" ", old))
    denied = other in set(_affirmed(one)) or one in set(_affirmed(other))
    return "replaces" if denied or _opposed(one, other) or _outdated(new, old) else "new"


def _spelled_out(text: str) -> str:
    for found, written in _SPELLED_OUT:
        text = found.sub(written, text)
    return " ".join(text.split())


def _words(text: str) -> Words:
    return tuple(re.findall(r"\w+", fold(_spelled_out(text))))


def _unsure(text: str) -> bool:
    """A question; somebody who is not named; words that mean another day each time."""
    words = _words(text)
    of_a_day = resolve_dates(text, 0.0) != text
    return not words or words[0] in _SOMEBODY or bool(set("?？؟") & set(text)) or of_a_day


def _affirmed(words: Words) -> Iterator[Words]:
    """What a sentence denies, in the forms that it can have: `I do not like tea` denies `I like tea`."""
    if _HEDGES & set(words):
        return
    for at, word in enumerate(words):
        before, behind = words[:at], words[at + 1 :]
        if word == "never" or (word == "no" and behind[:1] == ("longer",)):
            yield before + (behind if word == "never" else behind[1:])
        if word != "not" or not before or before[-1] not in _AUXILIARIES or _HALF_DENIED & set(behind[:1]):
            continue
        if before[-1] in ("do", "does"):
            yield from ((*before[:-1], verb, *behind[1:]) for verb in _forms(behind[:1], before[-1]))
        else:
            yield before + behind


def _forms(verb: Words, auxiliary: str) -> Words:
    """`does not like`: `likes`."""
    if not verb or auxiliary == "do":
        return verb
    [base] = verb
    return ("has",) if base == "have" else (f"{base}s", f"{base}es", f"{base[:-1]}ies")


def _opposed(one: Words, other: Words) -> bool:
    """The same words but for one, which is the other's opposite."""
    if len(one) != len(other) or (_HEDGES | _NEGATIONS - {"never"}) & {*one, *other}:
        return False
    apart = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    if len(apart) != 1 or "never" in set(one) & set(other):
        return False
    [(word, its)] = apart
    return any((word in a and its in b) or (word in b and its in a) for a, b in _OPPOSED)


def _active(words: Words) -> frozenset[Words]:
    """`Bob is managed by Ann`: `Ann manages Bob`."""
    found = _PASSIVE.fullmatch(" ".join(words))
    if found is None:
        return frozenset()
    stem = found["verb"]
    forms = (f"{stem}ed",) if found["is"] in ("was", "were") else (f"{stem}es", f"{stem}s", stem, f"{stem}e")
    return frozenset((*found["who"].split(), form, *found["whom"].split()) for form in forms)


def _outdated(new: str, old: str) -> bool:
    one, other = _holding(new), _holding(old)
    if one is None or other is None:
        return False
    return (one.rule, one.subject) == (other.rule, other.subject) and one.value != other.value


def _holding(text: str) -> _Holding | None:
    sentence = _spelled_out(_NOW.sub(" ", text)).rstrip(".! ")
    if re.search(r"[.!?;:。！]\s", sentence) or _SEVERAL.search(sentence):
        return None
    for rule, pattern in enumerate(_ONE_VALUED):
        found = pattern.fullmatch(sentence)
        if found is not None:
            subject, value = _words(found["subject"]), _words(found["value"])
            plain = len(subject) <= _MOST_WORDS and len(value) <= _MOST_WORDS and not _ANYBODY & set(subject)
            return _Holding(rule, subject, value) if plain and not _SAYS_MORE & {*subject, *value} else None
    return None
