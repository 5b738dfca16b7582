"""What was said in one chat, for remembering it after the answer.

Knows: the last message and the answer, whole or streamed. Refuses to know: how facts are made of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inferscale_server.brain import Brain
from inferscale_server.edge.sse import parse_event
from inferscale_server.edge.wire import ChatMemory
from inferscale_server.errors import ExtractionUnavailable, RequestError
from inferscale_server.extraction.backlog import Waiting
from inferscale_server.extraction.turn import turns_of
from inferscale_server.remember import DraftDefaults
from inferscale_server.seat import plain_text


@dataclass
class Heard:
    """One chat's part of a conversation. `since` is what `MemoryService.wipes` said when the chat came in; `kept`: its
    turn was queued, or there was nothing to queue."""

    ask: ChatMemory
    said: tuple[Mapping[str, Any], ...]
    since: int
    at: float
    pieces: list[str] = field(default_factory=list)
    kept: bool = False

    def event(self, event: str) -> None:
        """Read a piece of the first answer from one event of the stream."""
        chunk = parse_event(event) if self.ask.remember else None
        for choice in (chunk or {}).get("choices") or ():
            if choice.get("index", 0) == 0:
                self.pieces.append((choice.get("delta") or {}).get("content") or "")

    def answer(self, text: str | None) -> None:
        """Take the whole answer."""
        self.pieces.append(text or "")

    def keep(self, brain: Brain, recalled: Sequence[str]) -> str:
        """Queue the turn: `queued`, `queue_full`, `nothing` to remember, or `unusable` (too long, no valid text)."""
        self.kept = True
        owner, extraction, backlog = self.ask.owner, brain.extraction, brain.backlog
        assert owner is not None and extraction is not None and backlog is not None, "checked when the chat came in"
        answer = {"role": "assistant", "content": "".join(self.pieces)}
        messages = [*self.said, answer] if extraction.sources == "both" and answer["content"].strip() else self.said
        defaults = DraftDefaults(self.at, self.ask.session_id, scope=self.ask.scope)
        try:
            turns = turns_of(list(messages), defaults, extraction.sources) if self.said else ()
        except RequestError:
            return "unusable"
        if not turns:
            return "nothing"
        [turn] = turns
        return backlog.put(Waiting(owner, turn.beside(recalled), self.since))

    def keep_unanswered(self, brain: Brain, recalled: Sequence[str]) -> None:
        """The answer broke off: queue what the user said, without the piece of an answer, unless the turn was kept."""
        if self.ask.remember and not self.kept:
            self.pieces.clear()
            self.keep(brain, recalled)


def heard(brain: Brain, ask: ChatMemory, messages: Sequence[Any]) -> Heard:
    """What the last message says, if it is the user's: a tool's result goes on with a turn that was kept before.

    Raises ExtractionUnavailable when the chat shall be remembered and the server does not do that.
    """
    if ask.remember and brain.extraction is None:
        raise ExtractionUnavailable(
            "this server does not turn conversations into facts: add facts instead", param="inferscale.memory.remember"
        )
    last = messages[-1] if messages else None
    said: tuple[Mapping[str, Any], ...] = ()
    if isinstance(last, Mapping) and last.get("role") == "user" and plain_text(last.get("content")).strip():
        said = ({"role": "user", "content": plain_text(last.get("content")), "name": last.get("name")},)
    since = 0 if ask.owner is None else brain.memory.wipes(ask.owner)
    return Heard(ask, said, since, time.time())
