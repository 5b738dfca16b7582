"""Where the memory sits in a client's messages: in the system message, or before the first question.

Knows: roles and texts. Refuses to know: templates (engine/framing.py asks which seat a template bears) and tokens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from inferscale_server.wording import Wording

Message = Mapping[str, Any]
Seat = Literal["system", "user"]
SEATS: tuple[Seat, ...] = ("system", "user")
"""In the order in which they are tried: some templates refuse a system message, or show it late, or not at all."""
SYSTEM_ROLES = ("system", "developer")


PROBES: tuple[tuple[Message, ...], ...] = tuple(
    tuple({"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts))
    for texts in (("?",), ("Hello.", "Hello!", "Who?"), ("One.", "Two.", "Three.", "Four.", "Five?"))
)
"""Conversations whose memory must stand behind the very same tokens: else each turn would have a header of its own."""


@dataclass(frozen=True, slots=True)
class Seated:
    """The seat that a template bears, and the token ids that stand before the memory there."""

    seat: Seat
    header: tuple[int, ...]


HeaderOf = Callable[[Seat, Sequence[Message]], Awaitable[tuple[int, ...] | None]]


async def find_seat(header_of: HeaderOf) -> Seated | None:
    """The first seat in which the memory has the same header in every conversation; None when there is none.

    `header_of` gives the ids before the memory, or None where the template refuses the messages or loses the memory.
    """
    for seat in SEATS:
        headers = [await header_of(seat, conversation) for conversation in PROBES]
        if headers[0] is not None and headers.count(headers[0]) == len(headers):
            return Seated(seat, headers[0])
    return None


def with_memory(
    messages: Sequence[Any], memory: str, seat: Seat = "system", wording: Wording | None = None
) -> list[Any]:
    """The messages with one system text that intro and memory end; it is made if there is none.

    Several system messages at the front become one, since templates refuse a second or show it as a turn of its own. In
    the seat "user" the text opens the first user message, and no system message is left at the front.
    """
    front, rest = _split(messages)
    text = (wording or Wording()).around([plain_text(message.get("content")) for message in front], memory)
    if seat == "system":
        role = {message.get("role") for message in front} or {"system"}
        first = front[0] if front else {}
        return [{**first, "role": role.pop() if len(role) == 1 else "system", "content": text}, *rest]
    return _before_the_first_question(rest, text)


def plain_text(content: Any) -> str:
    """The text of a message's content: a string, or OpenAI's text parts joined by line breaks."""
    if isinstance(content, str):
        return content
    parts = content or ()
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def last_user_text(messages: Sequence[Any]) -> str:
    """What the user asked last: the query that facts are retrieved for."""
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return plain_text(message.get("content"))
    return ""


def _split(messages: Sequence[Any]) -> tuple[list[Message], list[Any]]:
    """The system messages at the front, and the rest."""
    count = 0
    while count < len(messages) and _role(messages[count]) in SYSTEM_ROLES:
        count += 1
    return list(messages[:count]), list(messages[count:])


def _before_the_first_question(messages: list[Any], text: str) -> list[Any]:
    place = next((place for place, message in enumerate(messages) if _role(message) == "user"), None)
    if place is None:
        return [{"role": "user", "content": text}, *messages]
    asked = messages[place]
    content = asked.get("content")
    if isinstance(content, str) or content is None:
        content = f"{text}\n{content or ''}"
    else:
        content = [{"type": "text", "text": f"{text}\n"}, *content]
    return [*messages[:place], {**asked, "content": content}, *messages[place + 1 :]]


def _role(message: Any) -> object:
    return message.get("role") if isinstance(message, Mapping) else None
