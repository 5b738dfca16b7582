"""What a model wrote, read as JSON however it is wrapped.

Knows: fences, prose around JSON, bad escapes, lone surrogates, answers that were cut short. Refuses to guess: what
cannot be read is a BadAnswer with the reason, never an empty list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from inferscale_server.errors import InferScaleError, RequestError
from inferscale_server.extraction.salient import Extracted, Salient
from inferscale_server.remember import parse_text

MAX_FACTS_PER_TURN = 5
LISTS = ("facts", "memory", "memories")
TEXTS = ("text", "fact", "memory")

Names = Mapping[str, str]

_BAD_ESCAPE = re.compile(r'\\(\\|["/bfnrt]|u[0-9a-fA-F]{4})|\\')
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder(strict=False)


class BadAnswer(InferScaleError):
    """The model's answer cannot be used; the message says why, without quoting it."""


def read_facts(answer: str, speakers: Sequence[str], names: Names = MappingProxyType({})) -> Extracted:
    """Up to MAX_FACTS_PER_TURN facts; an empty list is an answer too. `names`: how the answer calls some of the
    speakers. Raises BadAnswer."""
    found = read_json(answer)
    listed = found if isinstance(found, list) else next((found[key] for key in LISTS if key in found), None)
    if not isinstance(listed, list):
        raise BadAnswer("the answer holds no list of facts")
    return _facts(listed, speakers, names)


def salvage_facts(answer: str, speakers: Sequence[str], names: Names = MappingProxyType({})) -> Extracted:
    """The complete facts of an answer that was cut short. Raises BadAnswer when there are none."""
    start = answer.find("[")
    whole = list(_elements(_mended(answer), start + 1)) if start >= 0 else []
    if not whole:
        raise BadAnswer("the answer is no JSON, or was cut short before its first fact")
    return _facts(whole, speakers, names)


def read_json(answer: str) -> dict[str, Any] | list[Any]:
    """The first JSON object or list in the answer. Raises BadAnswer."""
    if not answer.strip():
        raise BadAnswer("the answer is empty")
    mended = _mended(answer)
    for start in (at.start() for at in re.finditer(r"[{\[]", mended)):
        try:
            value, _ = _DECODER.raw_decode(mended, start)
        except (ValueError, RecursionError):
            if mended[start] == "{":  # what follows is inside of what is broken
                break
            continue
        if isinstance(value, dict | list):
            return value
    raise BadAnswer("the answer is no JSON")


def _elements(text: str, at: int) -> Iterator[object]:
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield value


def _facts(listed: Sequence[object], speakers: Sequence[str], names: Names) -> Extracted:
    facts: list[Salient] = []
    lost: list[str] = []
    for one in listed[:MAX_FACTS_PER_TURN]:
        try:
            facts.append(_fact(one, speakers, names))
        except BadAnswer as error:
            lost.append(str(error))
    if lost and not facts:
        raise BadAnswer(lost[0])
    return Extracted(tuple(dict.fromkeys(facts)), tuple(lost))


def _fact(one: object, speakers: Sequence[str], names: Names) -> Salient:
    written: object = one
    who: object = None
    if isinstance(one, Mapping):
        written = next((one[key] for key in TEXTS if key in one), None)
        who = one.get("who", one.get("attributed_to"))
    if not isinstance(written, str):
        raise BadAnswer("a fact of the answer has no text")
    try:
        text = parse_text(" ".join(_SURROGATE.sub(" ", written).replace("\0", " ").split()), "text")
    except RequestError as error:
        raise BadAnswer(f"a fact of the answer cannot be kept: {error.message}") from error
    speaker = names.get(who, who) if isinstance(who, str) else ""
    return Salient(text, speaker if speaker in speakers else speakers[0])


def _mended(answer: str) -> str:
    """Backslashes that escape nothing stand for themselves."""
    return _BAD_ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", answer)
