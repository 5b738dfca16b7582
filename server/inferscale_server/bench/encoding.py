"""Loads a conversation into a server and measures how long its KV takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inferscale_server.bench.conversation import DatedFact
from inferscale_server.demo.server import Report
from inferscale_server.errors import Unavailable
from inferscale_server.limits import MAX_FACTS_PER_REQUEST

if TYPE_CHECKING:
    from inferscale_sdk import FactInput, InferScaleClient

POLL_S = 0.5
"""Asking costs the server time, and a second core may not be there: rarely enough not to slow the encoding."""
ONE_POLL_S = 0.05
"""While a single fact is waited for, which takes a fraction of a second: what is not seen yet counts as encoding."""
IDLE_ANSWERS = 3
"""So many times in a row nothing must be queued: the queue is empty for a moment between two owners' batches."""
TIMEOUT_S = 1800.0
"""Given up when nothing has come for so long: all of a large conversation may take longer."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The server's encoding at one moment: chunks queued or running, and since its start what became of those and how
    many tokens were computed for what."""

    pending: int
    results: Counter[str]
    tokens: Counter[str]


@dataclass(frozen=True, slots=True)
class Mark:
    """Chunks that wait for their KV, and those that have got it since the server's start, after so many seconds."""

    after_s: float
    pending: int
    stored: int


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a conversation was taken in: storing (embedding included), then encoding in the background.

    `encode_s` runs from the end of storing until nothing waits for its KV. One by one it runs from the first add, since
    each fact is encoded before the next is stored; `store_s` is then what the adds alone took, and part of it.
    """

    facts: int
    tokens: int
    store_s: float
    encode_s: float
    results: dict[str, int]
    """Chunks by what became of them: stored, incomplete, failed, dropped. Headers count."""
    computed: dict[str, int]
    """Tokens that encode requests computed: chunks' own, as often as they were encoded, prefixes, throw-away ones."""
    marks: tuple[Mark, ...] = ()
    encoded: int | None = None
    """Facts that have KV in any tier at the end; None where the server does not tell."""

    @property
    def facts_per_s(self) -> float:
        """Facts encoded a second."""
        return self.facts / self.encode_s

    @property
    def tokens_per_s(self) -> float:
        """The owner's tokens encoded a second."""
        return self.tokens / self.encode_s

    @property
    def cost(self) -> float:
        """Tokens computed for each token of the facts' own: 1 is the least."""
        return sum(self.computed.values()) / self.tokens if self.tokens else 0.0

    @property
    def complaints(self) -> list[str]:
        """What was not encoded."""
        failed = [f"{count} chunks were not encoded" for count in [self.results.get("failed", 0)] if count]
        if self.encoded is None or self.encoded >= self.facts:
            return failed
        full = f"only {self.encoded} of {self.facts} facts got KV: the device memory for it is full (--kv-device-gib)"
        return [*failed, full]


def take_in(
    client: InferScaleClient, user: str, facts: Sequence[DatedFact], tell: Report, one_by_one: bool = False
) -> Encoding:
    """Store the facts and wait for their KV, of all at once or of each before the next is stored.

    Raises Unavailable when nothing has come for TIMEOUT_S, and the SDK's errors.
    """
    before, marks, store_s = queue(client), list[Mark](), 0.0
    start = time.monotonic()
    at_once = 1 if one_by_one else MAX_FACTS_PER_REQUEST
    for at in range(0, len(facts), at_once):
        tell(f"storing {at} of {len(facts)} facts")
        asked = time.monotonic()
        client.memories.add(user, facts=[fact_input(fact) for fact in facts[at : at + at_once]])
        store_s += time.monotonic() - asked
        if one_by_one:
            marks += _wait_idle(client, start)
    marks += wait_encoded(client, tell, start if one_by_one else None)
    footprint, after = client.footprint(user), queue(client)
    return Encoding(
        facts=footprint.facts,
        tokens=footprint.tokens or 0,
        store_s=store_s,
        encode_s=marks[-1].after_s,
        results=dict(after.results - before.results),
        computed=dict(after.tokens - before.tokens),
        marks=tuple(marks),
        encoded=footprint.encoded,
    )


def _wait_idle(client: InferScaleClient, start: float) -> Iterator[Mark]:
    """What was seen until nothing was pending. Raises Unavailable."""
    for mark in watch(client, start, ONE_POLL_S):
        yield mark
        if not mark.pending:
            return
    raise Unavailable(f"a fact was still waiting for its KV, and nothing had come for {TIMEOUT_S:.0f} s")


def fact_input(fact: DatedFact) -> FactInput:
    """The fact as the SDK takes it."""
    return {"text": fact.text, "speaker": fact.speaker, "timestamp": fact.said_at, "session_id": fact.session}


def wait_encoded(client: InferScaleClient, tell: Report, start: float | None = None) -> tuple[Mark, ...]:
    """Return when nothing waits for its KV; the last mark is the first at which that was so. Raises Unavailable.

    Marks count from `start` (of time.monotonic), else from now.
    """
    marks = []
    for mark in watch(client, start):
        marks.append(mark)
        tell(f"encoding: {mark.stored - marks[0].stored} chunks in {mark.after_s:.0f} s")
        if settled(marks):
            return tuple(marks[: 1 - IDLE_ANSWERS])
    raise Unavailable(f"{marks[-1].pending} encodings were still waiting, and none had come for {TIMEOUT_S:.0f} s")


def settled(marks: Sequence[Mark]) -> bool:
    """Was nothing pending the last IDLE_ANSWERS times?"""
    return len(marks) >= IDLE_ANSWERS and not any(mark.pending for mark in marks[-IDLE_ANSWERS:])


def watch(client: InferScaleClient, start: float | None = None, poll_s: float | None = None) -> Iterator[Mark]:
    """What is queued or running now, and again every `poll_s` (POLL_S) until nothing has come for TIMEOUT_S.

    Marks count from `start` (of time.monotonic), else from now.
    """
    came = time.monotonic()
    start = came if start is None else start
    done = None
    while (asked := time.monotonic()) - came < TIMEOUT_S:
        now = queue(client)
        if now.results.total() != done:
            done, came = now.results.total(), asked
        yield Mark(asked - start, now.pending, now.results["stored"])
        time.sleep(POLL_S if poll_s is None else poll_s)


def queue(client: InferScaleClient) -> Queue:
    """The server's queue now. Raises the SDK's errors."""
    told = client.status().raw["encoding"]
    assert isinstance(told, dict), f"status.encoding is {told!r}"
    pending = int(told["queued"]) + int(told["running"])
    return Queue(pending, Counter(told.get("results", {})), Counter(told.get("tokens", {})))
