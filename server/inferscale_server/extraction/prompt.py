"""What the model is asked, in few words, and the JSON that it must answer in.

Knows: wording and schemas. Refuses to know: which model, and how it is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from inferscale_server.extraction.answer import MAX_FACTS_PER_TURN
from inferscale_server.extraction.dates import said_on
from inferscale_server.extraction.turn import Turn

JUDGE_TOKENS = 24
MAX_FACT_LETTERS = 160
EXTRACT_TOKENS = MAX_FACTS_PER_TURN * (MAX_FACT_LETTERS + 40)
"""Room for the longest answer at a token a letter, with 40 for the JSON around each fact. Facts in Latin letters take a
quarter of that."""
AGAIN_TOKENS = MAX_FACTS_PER_TURN * (3 * MAX_FACT_LETTERS + 40)
"""Of the second try: letters that a tokenizer does not know take it a token a byte, three in most scripts."""
MAX_SOURCE_CHARS = 6_000
"""Of a turn, as the model sees it: the end of a longer one is left out, and `cut_of` says so."""

_EXTRACT = (
    "You note facts for later. Read what was said and list what is worth remembering about the speakers: who they are, "
    f"what they like, own, plan or did. At most {MAX_FACTS_PER_TURN} short sentences, each complete by itself, in the "
    "language of the text, with its names and numbers unchanged. Write the speaker's name, not I or you. Keep dates in "
    "brackets. Skip greetings, questions, requests and talk about this chat: then the list is empty. Do not invent. "
    'Answer in JSON: {"facts": [{"who": "speaker", "text": "sentence"}]}'
)
_JUDGE = (
    "Compare a new note with old ones. same: an old note says exactly the same. replaces: the new note makes an old "
    "one untrue, as when a taste, home or job has changed. new: anything else. Mind who does what to whom. Answer in "
    'JSON: {"relation": "new", "number": 0} with the number of the old note, 0 for new.'
)
_AGAIN = "Your last answer could not be read. Answer with nothing but the JSON."


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. `schema` is the JSON schema of the answer; temperature is 0 for the first try."""

    system: str
    user: str
    schema: Mapping[str, Any]
    max_tokens: int
    temperature: float = 0.0


class Writer(Protocol):
    """A model that answers."""

    async def __call__(self, prompt: Prompt) -> str:
        """The answer's text, which may break the schema. Raises Unavailable."""


def extract_prompt(turn: Turn, now: float, again: bool = False) -> Prompt:
    """Ask for the facts of a turn; `now` (Unix seconds) is when it was said unless its messages know better."""
    user = f"{said_on(turn.said_at(now))}\n{turn.shown(now)[:MAX_SOURCE_CHARS]}"
    tokens = AGAIN_TOKENS if again else EXTRACT_TOKENS
    return _prompt(_EXTRACT, user, _facts_schema(turn.speakers), tokens, again)


def first_prompt() -> Prompt:
    """For an engine that has not answered in this JSON yet; the answer, a token, is worth nothing.

    Compiling what an answer may be takes all cores for two seconds, once for all turns: only names differ between them.
    """
    return Prompt(_EXTRACT, "", _facts_schema(("user",)), 1)


def cut_of(turn: Turn, now: float) -> tuple[str, ...]:
    """In words for the client, what of the turn `extract_prompt` leaves out; nothing when it shows all."""
    left_out = len(turn.shown(now)) - MAX_SOURCE_CHARS
    return (f"the last {left_out:,} characters of the turn were not read",) if left_out > 0 else ()


def judge_prompt(new: str, old: Sequence[str], again: bool = False) -> Prompt:
    """Ask how a new fact stands to old ones."""
    listed = "\n".join(f"{number}. {text}" for number, text in enumerate(old, 1))
    return _prompt(_JUDGE, f"Old notes:\n{listed}\nNew note: {new}", _relation_schema(len(old)), JUDGE_TOKENS, again)


def _prompt(system: str, user: str, schema: Mapping[str, Any], max_tokens: int, again: bool) -> Prompt:
    if again:  # the same question at temperature 0 would get the same answer
        return Prompt(system, f"{user}\n\n{_AGAIN}", schema, max_tokens, 0.5)
    return Prompt(system, user, schema, max_tokens)


def _facts_schema(speakers: Sequence[str]) -> Mapping[str, Any]:
    fact = {
        "type": "object",
        "properties": {
            "who": {"type": "string", "enum": list(speakers)},
            "text": {"type": "string", "minLength": 3, "maxLength": MAX_FACT_LETTERS},
        },
        "required": ["who", "text"],
        "additionalProperties": False,
    }
    facts = {"type": "array", "items": fact, "maxItems": MAX_FACTS_PER_TURN}
    return {"type": "object", "properties": {"facts": facts}, "required": ["facts"], "additionalProperties": False}


def _relation_schema(old: int) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {
            "relation": {"type": "string", "enum": ["new", "same", "replaces"]},
            "number": {"type": "integer", "enum": list(range(old + 1))},
        },
        "required": ["relation", "number"],
        "additionalProperties": False,
    }
