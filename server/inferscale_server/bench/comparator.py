"""What is measured side by side: systems that turn a question into one chat request of the same server.

Knows: what a system does before the request is sent, and how one answer is timed. Refuses to know: which questions, how
many at once (throughput, load).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inferscale_sdk import ChatResponse, InferScaleClient


@dataclass(frozen=True, slots=True)
class Prompted:
    """One chat request: whose, with which messages, and what the server's own memory does for it (`mode`, `k`).

    `session` names the conversation whose memory block is kept; None: memory is chosen anew.
    """

    user: str
    messages: Sequence[Mapping[str, object]]
    mode: str
    k: int
    session: str | None = None


class Comparator(Protocol):
    """A memory system under test."""

    @property
    def name(self) -> str:
        """What the tables call it."""

    def prompted(self, question: str, k: int) -> Prompted:
        """The request for a question, with k facts. What it takes belongs to the system's time. Called by threads."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Times in milliseconds from asking, retrieval included; `first_token_ms` is None if not streamed."""

    asked: str
    served: str
    reason: str
    latency_ms: float
    first_token_ms: float | None
    prefilled_tokens: int
    injected_tokens: int
    memory_as_text: int
    """Tokens of our own memory that were computed; a foreign system's memory is part of the messages."""
    memory_tokens: int
    text: str = ""
    session: str = ""
    """What became of the session in this turn: begun, kept, replanned; empty without one."""


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """The server's own memory of one user, in one mode (auto, kv, text, off)."""

    user: str
    mode: str

    @property
    def name(self) -> str:
        """The mode."""
        return self.mode

    def prompted(self, question: str, k: int) -> Prompted:
        """The question alone: the server retrieves."""
        return Prompted(self.user, [{"role": "user", "content": question}], self.mode, k)


def whole_reply(client: InferScaleClient, system: Comparator, question: str, k: int, tokens: int) -> Reply:
    """Ask for exactly so many tokens, not streamed. Raises the SDK's errors."""
    start = time.perf_counter()
    asked = system.prompted(question, k)
    response = client.chat(
        asked.user,
        messages=asked.messages,
        session_id=asked.session,
        memory={"mode": asked.mode, "k": asked.k},
        temperature=0,
        max_tokens=tokens,
        extra_body={"ignore_eos": True},
    )
    return _reply(asked.mode, response, 1e3 * (time.perf_counter() - start), None)


def streamed_reply(client: InferScaleClient, system: Comparator, question: str, k: int, tokens: int) -> Reply:
    """The same, streamed: also when the first piece came."""
    start = time.perf_counter()
    asked = system.prompted(question, k)
    with client.chat(
        asked.user,
        messages=asked.messages,
        session_id=asked.session,
        memory={"mode": asked.mode, "k": asked.k},
        stream=True,
        temperature=0,
        max_tokens=tokens,
        extra_body={"ignore_eos": True},
    ) as stream:
        next(stream.text_stream, None)
        first_token_ms = 1e3 * (time.perf_counter() - start)
        response = stream.get_final_response()
    return _reply(asked.mode, response, 1e3 * (time.perf_counter() - start), first_token_ms)


def _reply(asked: str, response: ChatResponse, latency_ms: float, first_token_ms: float | None) -> Reply:
    told = response.raw["inferscale"]
    assert isinstance(told, Mapping), f"inferscale is {told!r}"
    return Reply(
        asked=asked,
        served=response.mode or "",
        reason=response.reason or "",
        latency_ms=latency_ms,
        first_token_ms=first_token_ms,
        prefilled_tokens=response.prefilled_tokens,
        injected_tokens=response.injected_tokens,
        memory_as_text=response.kv_source.get("text", 0),
        memory_tokens=int(told["memory_tokens"]),
        text=response.text or "",
        session=str(told.get("session", {}).get("state", "")),
    )
