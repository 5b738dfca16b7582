"""Memory in chat templates: one system text, seen by the model, in front of the conversation, whatever the family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import pytest

from inferscale_server.seat import SEATS, Seat, find_seat, last_user_text, plain_text, with_memory
from inferscale_server.wording import DEFAULT_SYSTEM, MEMORY_INTRO

from .templates import FAMILIES, Family, rendered

SLOT = "0f4c9a"
CONTROL = re.compile(r"<\|\w+\|>|\[/?[A-Z_]+\]|</?\w+>|\w+|\s|.")
by_name = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


class SmallTokenizer:
    """A token for each control string, word, blank and sign; ids in order of appearance."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids.setdefault(piece, len(self._ids)) for piece in CONTROL.findall(text))

    def text(self, ids: Sequence[int]) -> str:
        pieces = {number: piece for piece, number in self._ids.items()}
        return "".join(pieces[number] for number in ids)


def turns(*texts: str) -> list[dict[str, str]]:
    """A conversation that the user begins."""
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


async def seat_of(family: Family) -> tuple[Seat, tuple[int, ...]]:
    tokenize = SmallTokenizer()

    async def header_of(seat: Seat, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | None:
        try:
            text = rendered(family, with_memory(messages, SLOT, seat))
        except jinja2.TemplateError:
            return None
        return tokenize(text.split(SLOT)[0]) if text.count(SLOT) == 1 else None

    seated = await find_seat(header_of)
    assert seated is not None
    return seated.seat, seated.header


SYSTEMS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "one": [{"role": "system", "content": "Speak like a pirate."}],
    "two": [{"role": "system", "content": "Speak like a pirate."}, {"role": "system", "content": "Be brief."}],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "Speak like a pirate."}]}],
    "empty": [{"role": "system", "content": ""}],
}


@by_name
async def test_each_family_gets_the_seat_that_its_template_shows(family: Family) -> None:
    seat, header = await seat_of(family)
    assert seat == family.seat and len(header) > 0


@by_name
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("conversation", [("Who?",), ("Hi.", "Hello.", "Who?")], ids=["first turn", "later turn"])
async def test_the_served_tokens_hold_one_system_text_with_the_memory_at_its_end(
    family: Family, system: str, conversation: tuple[str, ...]
) -> None:
    seat, _ = await seat_of(family)
    text = rendered(family, with_memory([*SYSTEMS[system], *turns(*conversation)], SLOT, seat))
    tokenize = SmallTokenizer()
    served = tokenize.text(tokenize(text))
    assert served.count(SLOT) == served.count(MEMORY_INTRO) == 1 and MEMORY_INTRO + SLOT in served
    if family.block is not None:
        assert served.count(family.block) == 1 and served.index(family.block) < served.index(SLOT)
    for said in ("Speak like a pirate.", "Be brief.", DEFAULT_SYSTEM):
        given = [plain_text(message["content"]) for message in SYSTEMS[system]] or [DEFAULT_SYSTEM]
        assert served.count(said) == given.count(said)
    assert served.count(family.bos) == 1 or not family.bos
    assert served.index(SLOT) < served.index(conversation[0]) and "Qwen, created" not in served


@by_name
async def test_the_header_is_the_same_whatever_is_asked(family: Family) -> None:
    seat, header = await seat_of(family)
    tokenize = SmallTokenizer()
    befores = {
        rendered(family, with_memory(turns(*conversation), SLOT, seat)).split(SLOT)[0]
        for conversation in (("Who?",), ("Hi.", "Hello.", "Where?"), ("A.", "B.", "C.", "D.", "E?"))
    }
    assert len(befores) == 1 and len(tokenize(befores.pop())) == len(header)


@by_name
async def test_a_trimming_template_takes_nothing_from_the_memory(family: Family) -> None:
    seat, _ = await seat_of(family)
    framed = rendered(family, with_memory(turns("Who?"), SLOT, seat))
    before, after = framed.split(SLOT)
    assert before.endswith(MEMORY_INTRO) and len(after) > 0


def test_messages_that_are_not_touched_are_passed_on_as_they_are() -> None:
    asked = turns("Hi.", "Hello.", "Who?")
    for seat in SEATS:
        assert with_memory(asked, SLOT, seat)[-2:] == asked[-2:]
    named = {"role": "system", "content": "S.", "name": "boss"}
    assert with_memory([named, *asked], SLOT)[0]["name"] == "boss" and asked == turns("Hi.", "Hello.", "Who?")


def test_a_developer_message_stays_one_and_joins_a_system_message() -> None:
    developer, asked = {"role": "developer", "content": "D."}, turns("Who?")
    assert [m["role"] for m in with_memory([developer, *asked], SLOT)] == ["developer", "user"]
    merged = with_memory([{"role": "system", "content": "S."}, developer, *asked], SLOT)
    assert [m["role"] for m in merged] == ["system", "user"] and merged[0]["content"].startswith("S.\n\nD.\n\n")


def test_a_system_message_in_the_middle_is_left_to_the_template() -> None:
    messages = [*turns("Hi.", "Hello."), {"role": "system", "content": "Now be brief."}, *turns("Who?")]
    assert with_memory(messages, SLOT)[1:] == messages


def test_a_picture_in_the_first_question_is_kept_behind_the_memory() -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    (message,) = with_memory([{"role": "user", "content": [picture]}], SLOT, "user")
    assert message["content"][1:] == [picture] and SLOT in message["content"][0]["text"]


def test_without_a_question_the_memory_is_a_message_of_its_own() -> None:
    assert with_memory([{"role": "assistant", "content": "Hi."}], SLOT, "user")[0]["role"] == "user"


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (turns("Hi.", "Hello.", "Who?"), "Who?"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "a\nb"),
        ([{"role": "assistant", "content": "Hi."}], ""),
    ],
)
def test_the_query_is_what_the_user_said_last(messages: list[dict[str, Any]], text: str) -> None:
    assert last_user_text(messages) == text
