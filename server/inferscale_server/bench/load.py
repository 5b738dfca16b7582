"""`bench load`: what chats wait when they come at their own pace, beside adds and beside encoding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice, product
from threading import Lock
from typing import TYPE_CHECKING

from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.comparator import Comparator, Reply, ServerMemory, streamed_reply
from inferscale_server.bench.conversation import Conversation, DatedFact
from inferscale_server.bench.encoding import Encoding, fact_input, take_in, wait_encoded
from inferscale_server.bench.load_arrivals import arrivals
from inferscale_server.bench.load_cell import (
    LoadCell,
    empty_loads,
    encoding_ratios,
    load_cell,
    load_cells,
    load_complaints,
    mode_ratios,
)
from inferscale_server.bench.load_loop import UNDER_WAY_AT_MOST, Timed, Traffic, open_loop
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.throughput import endless
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

MODES = ("auto", "kv", "text", "off")
ROUNDS = 3
"""Each mode's seconds are cut into so many parts, and the modes take turns: a drift of the machine hits all alike."""
WARM_UP_CHATS = 4
ENCODING_S_AT_MOST = 3600.0
IDLE_CHATS_AT_LEAST = 100
"""A 99th percentile of fewer is their largest."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second for so many seconds a mode; `adds_share` of them store a fact, the others ask for k facts."""

    rate_per_s: float
    seconds: float
    adds_share: float
    k: int
    tokens: int
    encoded_facts: int
    """So many are encoded while the last load asks; 0: that part is left out."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What `bench load` found out. `encoding` is of the facts that were encoded beside chats."""

    cells: tuple[LoadCell, ...]
    ratios: tuple[Ratio, ...]
    encoding: Encoding | None
    complaints: tuple[str, ...]


@dataclass(frozen=True)
class Chats:
    """One user's chats, each with a question of its own, and another user's adds beside them.

    What fails is counted by the name of the load.
    """

    client: InferScaleClient
    user: str
    load: Load
    questions: Iterator[str]
    facts: Sequence[DatedFact]
    losses: Losses = field(default_factory=lambda: Losses(UNDER_WAY_AT_MOST))

    def traffic(self, mode: str, name: str) -> Traffic:
        """Chats in this mode under the load `name`; what is added belongs to somebody new."""
        return self.traffic_of(ServerMemory(self.user, mode), name)

    def traffic_of(self, memory: Comparator, name: str) -> Traffic:
        """The same with any memory; what is added goes to the server."""
        writer, to_add = new_user(), iter(numbered(self.facts, 1_000_000))
        lock = Lock()  # a generator belongs to one thread at a time

        def ask(question: str) -> Reply | None:
            asked = partial(streamed_reply, self.client, memory, question, self.load.k, self.load.tokens)
            return self.losses.tried(name, asked)

        def add() -> None:
            with lock:
                fact = next(to_add)
            self.losses.tried(f"{name}, adds", partial(self.client.memories.add, writer, facts=[fact_input(fact)]))

        return Traffic(self.questions, ask, add)


def run_load(
    client: InferScaleClient, conversation: Conversation, load: Load, tell: Report, rival: Comparator | None = None
) -> LoadRun:
    """Load the conversation, compare the modes and the rival, then encode beside chats. Raises the SDK's errors."""
    user = new_user()
    take_in(client, user, conversation.facts, tell)
    asked = endless([question.text for question in conversation.questions], 0)
    chats = Chats(client, user, load, asked, conversation.facts)
    systems: list[Comparator] = [*(ServerMemory(user, mode) for mode in MODES), *([rival] if rival else [])]
    answered = in_turns(chats, systems, tell)
    encoding, ratios, losses = None, mode_ratios(load_cells(answered)), chats.losses
    if load.encoded_facts:
        busy, encoding = beside_encoding(chats, tell)
        idle = beside_nothing(chats, max(len(busy), IDLE_CHATS_AT_LEAST), tell)
        answered |= {"idle": idle, "encoding": busy}
        if equally_many := min(len(busy), len(idle)):
            pair = load_cell("idle", idle[:equally_many]), load_cell("encoding", busy[:equally_many])
            ratios += encoding_ratios(*pair)
    cells = load_cells(answered, losses)
    complaints = [*empty_loads(answered), *load_complaints(cells), *(encoding.complaints if encoding else [])]
    return LoadRun(tuple(cells), tuple(ratios), encoding, (*complaints, *losses.complaints))


def in_turns(chats: Chats, systems: Sequence[Comparator], tell: Report) -> dict[str, list[Timed]]:
    """The whole load for each system by name, all warmed up first; returns when what was added is encoded."""
    load, traffics = chats.load, {system.name: chats.traffic_of(system, system.name) for system in systems}
    for system in systems:
        warm_up(chats.traffic_of(system, WARM_UP))
    answered: dict[str, list[Timed]] = {name: [] for name in traffics}
    for turn, (name, traffic) in product(range(ROUNDS), traffics.items()):
        tell(f"{load.rate_per_s:g} requests a second for {load.seconds / ROUNDS:g} s: {name}")
        due = arrivals(load.rate_per_s, load.seconds / ROUNDS, load.adds_share, seed=turn + 1)
        answered[name] += open_loop(due, traffic)
        chats.losses.check(name)
        wait_encoded(chats.client, tell)
    return answered


def warm_up(traffic: Traffic) -> None:
    """A few chats that do not count."""
    for question in islice(traffic.questions, WARM_UP_CHATS):
        traffic.ask(question)


def beside_encoding(chats: Chats, tell: Report) -> tuple[list[Timed], Encoding]:
    """Chats (auto, no adds) for as long as another user's facts are stored and encoded."""
    load, traffic = chats.load, chats.traffic("auto", "encoding")
    warm_up(chats.traffic("auto", WARM_UP))
    facts = list(numbered(chats.facts, load.encoded_facts))
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(take_in, chats.client, new_user(), facts, tell)
        busy = open_loop(arrivals(load.rate_per_s, ENCODING_S_AT_MOST), traffic, encoding.done)
    chats.losses.check("encoding")
    return busy, encoding.result()


def beside_nothing(chats: Chats, count: int, tell: Report) -> list[Timed]:
    """So many of the same chats, at the same moments, on an idle server."""
    tell(f"{count} chats, {chats.load.rate_per_s:g} a second, beside nothing")
    idle = open_loop(islice(arrivals(chats.load.rate_per_s, math.inf), count), chats.traffic("auto", "idle"))
    chats.losses.check("idle")
    return idle


def numbered(facts: Sequence[DatedFact], count: int) -> Iterator[DatedFact]:
    """So many different facts: the given ones again and again, told apart by a number."""
    turns = enumerate(islice(cycle(facts), count))
    return (fact if at < len(facts) else replace(fact, text=f"{fact.text} ({at // len(facts)})") for at, fact in turns)
