"""`bench load`: what chats wait when they come at their own pace, beside adds and beside encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, islice
from threading import Lock
from typing import TYPE_CHECKING

from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.comparator import Reply, ServerMemory, streamed_reply
from inferscale_server.bench.conversation import Conversation, DatedFact
from inferscale_server.bench.encoding import Encoding, fact_input, take_in, wait_encoded
from inferscale_server.bench.load_arrivals import arrivals
from inferscale_server.bench.load_cell import LoadCell, encoding_ratios, load_cell, load_complaints, mode_ratios
from inferscale_server.bench.load_loop import Traffic, open_loop
from inferscale_server.bench.throughput import endless
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

MODES = ("auto", "kv", "text")
WARM_UP_CHATS = 4
ENCODING_S_AT_MOST = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests a second for so many seconds; `adds_share` of them store a fact, the others ask for k facts."""

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
    """One user's chats, each with a question of its own, and another user's adds beside them."""

    client: InferScaleClient
    user: str
    load: Load
    questions: Iterator[str]
    facts: Sequence[DatedFact]

    def traffic(self, mode: str) -> Traffic:
        """Chats in this mode; what is added belongs to somebody new."""
        memory, writer, to_add = ServerMemory(self.user, mode), new_user(), iter(numbered(self.facts, 1_000_000))
        lock = Lock()  # a generator belongs to one thread at a time

        def ask(question: str) -> Reply:
            return streamed_reply(self.client, memory, question, self.load.k, self.load.tokens)

        def add() -> None:
            with lock:
                fact = next(to_add)
            self.client.memories.add(writer, facts=[fact_input(fact)])

        return Traffic(self.questions, ask, add)


def run_load(client: InferScaleClient, conversation: Conversation, load: Load, tell: Report) -> LoadRun:
    """Load the conversation, compare the modes, then encode beside chats. Raises the SDK's errors."""
    user = new_user()
    take_in(client, user, conversation.facts, tell)
    asked = endless([question.text for question in conversation.questions], 0)
    chats = Chats(client, user, load, asked, conversation.facts)
    cells = [under_mode(chats, mode, tell) for mode in MODES]
    ratios = mode_ratios(cells)
    encoding = None
    if load.encoded_facts:
        idle, busy, encoding = beside_encoding(chats, tell)
        cells += [idle, busy]
        ratios += encoding_ratios(idle, busy)
    complaints = [*load_complaints(cells), *(encoding.complaints if encoding else [])]
    return LoadRun(tuple(cells), tuple(ratios), encoding, tuple(complaints))


def under_mode(chats: Chats, mode: str, tell: Report) -> LoadCell:
    """The whole load with one mode, warmed up; returns when what was added is encoded."""
    load, traffic = chats.load, chats.traffic(mode)
    warm_up(traffic)
    tell(f"{load.rate_per_s:g} requests a second for {load.seconds:g} s: {mode}")
    cell = load_cell(mode, open_loop(arrivals(load.rate_per_s, load.seconds, load.adds_share), traffic))
    wait_encoded(chats.client, tell)
    return cell


def warm_up(traffic: Traffic) -> None:
    """A few chats that do not count."""
    for question in islice(traffic.questions, WARM_UP_CHATS):
        traffic.ask(question)


def beside_encoding(chats: Chats, tell: Report) -> tuple[LoadCell, LoadCell, Encoding]:
    """The same chats (auto, no adds) on an idle server, and as long as another user's facts are stored and encoded."""
    load, traffic = chats.load, chats.traffic("auto")
    warm_up(traffic)
    tell(f"{load.rate_per_s:g} chats a second for {load.seconds:g} s beside nothing")
    idle = open_loop(arrivals(load.rate_per_s, load.seconds), traffic)
    facts = list(numbered(chats.facts, load.encoded_facts))
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(take_in, chats.client, new_user(), facts, tell)
        busy = open_loop(arrivals(load.rate_per_s, ENCODING_S_AT_MOST), traffic, encoding.done)
    return load_cell("idle", idle), load_cell("encoding", busy), encoding.result()


def numbered(facts: Sequence[DatedFact], count: int) -> Iterator[DatedFact]:
    """So many different facts: the given ones again and again, told apart by a number."""
    turns = enumerate(islice(cycle(facts), count))
    return (fact if at < len(facts) else replace(fact, text=f"{fact.text} ({at // len(facts)})") for at, fact in turns)
