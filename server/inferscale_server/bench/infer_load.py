"""`bench load --infer`: what chats wait while the served model makes facts of other users' turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from rich.table import Table

from inferscale_server.bench.cell import Ratio
from inferscale_server.bench.conversation import Conversation, DatedFact
from inferscale_server.bench.encoding import take_in, wait_encoded
from inferscale_server.bench.load import Chats, Load, numbered, warm_up
from inferscale_server.bench.load_arrivals import arrivals
from inferscale_server.bench.load_cell import (
    WHILE_ENCODING_MEDIAN_AT_MOST,
    WHILE_ENCODING_P99_AT_MOST,
    LoadCell,
    load_cells,
)
from inferscale_server.bench.load_loop import UNDER_WAY_AT_MOST, Timed, open_loop
from inferscale_server.bench.losses import WARM_UP, Losses
from inferscale_server.bench.throughput import endless
from inferscale_server.bench.ttft import new_user
from inferscale_server.demo.server import Report
from inferscale_server.errors import Unavailable

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

WRITES = frozenset({"llm", "mem0"})
"""Extractors that have the served model write."""
TURNS_AT_MOST = 1_000_000
TURNS = "turns"
"""What the writers' adds are called among the losses."""
ADD_TIMEOUT_S = 900.0
"""Turns wait for one another, and all of them for chats."""


@dataclass(frozen=True, slots=True)
class InferRun:
    """Chats on an idle server and beside turns that became facts. `outcomes` counts what those gave, by status;
    `failed_turns` were not answered at all."""

    cells: tuple[LoadCell, ...]
    ratios: tuple[Ratio, ...]
    turns: int
    outcomes: dict[str, int]
    complaints: tuple[str, ...]
    failed_turns: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """The turns of one writer that were answered, and what became of their facts, by status."""

    turns: int
    outcomes: Counter[str]


def run_infer(client: InferScaleClient, conversation: Conversation, load: Load, writers: int, tell: Report) -> InferRun:
    """The same chats (auto) beside nothing, and while so many other users add one turn after the other.

    Raises Unavailable when the server's extractor does not use its model, and the SDK's errors.
    """
    check_writes(client)
    user = new_user()
    take_in(client, user, conversation.facts, tell)
    asked = endless([question.text for question in conversation.questions], 0)
    chats = Chats(client, user, load, asked, conversation.facts, losses := Losses(UNDER_WAY_AT_MOST + writers))
    warm_up(chats.traffic("auto", WARM_UP))
    idle = answered(chats, "idle", tell, "beside nothing")
    stop = Event()
    with ThreadPoolExecutor(writers) as pool:
        try:
            taking = [pool.submit(add_turns, client, conversation.facts, stop, losses) for _ in range(writers)]
            busy = answered(chats, "infer", tell, f"while {writers} users add turns")
        finally:
            stop.set()
        tell("waiting for the turns under way")
    taken = [one.result() for one in taking]
    losses.check(TURNS)
    wait_encoded(client, tell)
    return summary(idle, busy, taken, losses)


def check_writes(client: InferScaleClient) -> None:
    """Raises Unavailable when this server makes facts without its model, as `auto` does with the embedded one."""
    told = client.status().raw["extraction"]
    assert isinstance(told, dict), f"status.extraction is {told!r}"
    if told["extractor"] not in WRITES:
        raise Unavailable(
            f"this server's extractor is {told['extractor']!r}, so its model writes nothing: "
            "start it with --extractor llm"
        )


def answered(chats: Chats, name: str, tell: Report, beside: str) -> list[Timed]:
    """Chats for the load's seconds; they come at the same moments each time."""
    tell(f"{chats.load.rate_per_s:g} chats a second for {chats.load.seconds:g} s {beside}")
    found = open_loop(arrivals(chats.load.rate_per_s, chats.load.seconds), chats.traffic("auto", name))
    chats.losses.check(name)
    return found


def add_turns(client: InferScaleClient, facts: Sequence[DatedFact], stop: Event, losses: Losses) -> Taken:
    """One user's messages, each sent when the one before is stored or has failed, until told to stop."""
    patient, user = client.with_options(timeout=ADD_TIMEOUT_S, max_retries=0), new_user()
    said: Iterator[DatedFact] = numbered(facts, TURNS_AT_MOST)
    turns, outcomes = 0, Counter[str]()
    while not stop.is_set():
        fact = next(said)
        message = {"role": "user", "content": fact.text, **({"name": fact.speaker} if fact.speaker else {})}
        add = partial(patient.memories.add, user, messages=[message], timestamp=fact.said_at, infer=True)
        if (added := losses.tried(TURNS, add)) is not None:
            turns += 1
            outcomes.update(outcome.status for outcome in added.results)
    return Taken(turns, outcomes)


def summary(
    idle: Sequence[Timed], busy: Sequence[Timed], taken: Sequence[Taken], losses: Losses | None = None
) -> InferRun:
    """Cells, ratios, and what makes the run void or was lost."""
    losses = losses or Losses()
    cells = load_cells({"idle": idle, "infer": busy}, losses)
    turns = sum(one.turns for one in taken)
    complaints = [*([] if len(cells) == 2 else ["no chat came: raise --seconds or --rate"])]
    complaints += [] if turns else ["no turn was added while chats were asked: raise --seconds"]
    ratios = infer_ratios(*cells) if len(cells) == 2 else ()
    outcomes = sum((one.outcomes for one in taken), Counter[str]())
    told = (*complaints, *losses.complaints)
    return InferRun(tuple(cells), tuple(ratios), turns, dict(outcomes), told, losses.count(TURNS))


def infer_ratios(idle: LoadCell, busy: LoadCell) -> tuple[Ratio, ...]:
    """Time to first token beside turns that become facts, over the same without."""
    middle, last = busy.first_token_ms / idle.first_token_ms, busy.first_token_p99_ms / idle.first_token_p99_ms
    return (
        Ratio("median beside infer / idle", middle, WHILE_ENCODING_MEDIAN_AT_MOST, False),
        Ratio("p99 beside infer / idle", last, WHILE_ENCODING_P99_AT_MOST, False),
    )


def infer_table(run: InferRun) -> Table:
    """What the turns became."""
    outcomes = ", ".join(f"{status} {count}" for status, count in sorted(run.outcomes.items()))
    failed = (str(run.failed_turns),) if run.failed_turns else ()
    table = Table("turns", "facts by outcome", *["failed" for _ in failed], title="Turns added beside the chats")
    table.add_row(str(run.turns), outcomes, *failed)
    return table
