"""The demo from start to stop, told on a terminal. Everything that it decides is in `score` and `ttft`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from inferscale_server.demo import report, score, ttft
from inferscale_server.demo.conversations import Memory, Question, load_memories
from inferscale_server.demo.progress import Progress
from inferscale_server.demo.score import MODES, Answer
from inferscale_server.demo.server import POLL_S, Report, running_server, sigterm_unwinds
from inferscale_server.errors import Unavailable

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient

RECALL = 6
"""Facts recalled for a question."""
ANSWER_TOKENS = 40
ENCODE_TIMEOUT_S = 300.0


def run(out: Path, vllm_args: Sequence[str] = ()) -> bool:
    """Run the demo and leave demo.html, ttft.png and the server's logs in `out`; True when it shows what it should.

    Raises StartupError when the server does not come up, the SDK's errors when it fails on the way.
    """
    console = Console()
    memories = load_memories()
    out.mkdir(parents=True, exist_ok=True)
    with (
        Progress(console) as progress,
        loaded_server(memories, out / "server.log", vllm_args, progress.tell) as client,
    ):
        progress.tell("asking")
        answers = ask_all(client, console, [q for memory in memories for q in memory.questions])
        timings = time_all(client, memories, progress.tell)
        model = client.status().model or "unknown"
    found = score.complaints(answers)
    console.print(score_table(answers), timing_table(timings))
    report.write_plot(timings, out / "ttft.png")
    (out / "demo.html").write_text(report.page(model, answers, timings, found), "utf-8")
    console.print(f"written: {out / 'demo.html'}, {out / 'ttft.png'}", soft_wrap=True)
    for line in found:
        console.print(f"[red]{escape(line)}[/red]")
    return not found


@contextmanager
def loaded_server(
    memories: Sequence[Memory], log: Path, vllm_args: Sequence[str], tell: Report
) -> Iterator[InferScaleClient]:
    """A client of a fresh server that holds the memories and has encoded them; stopped and forgotten on leaving."""
    with (
        sigterm_unwinds(),
        tempfile.TemporaryDirectory(prefix="inferscale-data-") as data,
        running_server(Path(data), log, vllm_args, tell) as client,
    ):
        remember(client, memories, tell)
        yield client


def remember(client: InferScaleClient, memories: Sequence[Memory], tell: Report) -> None:
    """Store every session's facts and wait until their KV is there."""
    for memory in memories:
        for session in memory.sessions:
            tell(f"remembering {memory.user}'s conversation of {session.timestamp[:10]}")
            client.memories.add(memory.user, facts=session.facts, session_id=session.id, timestamp=session.timestamp)
    wait_encoded(client, tell)


def wait_encoded(client: InferScaleClient, tell: Report) -> None:
    """Return when no fact waits for its KV. Raises Unavailable after ENCODE_TIMEOUT_S."""
    deadline = time.monotonic() + ENCODE_TIMEOUT_S
    while (left := pending(client)) > 0:
        if time.monotonic() > deadline:
            raise Unavailable(f"{left} encodings were still waiting after {ENCODE_TIMEOUT_S:.0f} s")
        tell(f"encoding facts: {left} to go")
        time.sleep(POLL_S)


def pending(client: InferScaleClient) -> int:
    """Encodings queued or running, by the server's status."""
    encoding = client.status().raw["encoding"]
    assert isinstance(encoding, dict), f"status.encoding is {encoding!r}"
    return int(encoding["queued"]) + int(encoding["running"])


def ask_all(client: InferScaleClient, console: Console, questions: Sequence[Question]) -> list[Answer]:
    """Ask everything in every mode and print each answer; the facts are printed where their KV was injected."""
    answers = []
    for question in questions:
        console.print(f"[bold]{escape(question.user)}: {escape(question.text)}[/bold]")
        for mode in MODES:
            answers.append(answer := ask(client, question, mode))
            mark = "[green]right[/green]" if answer.right else "[red]wrong[/red]"
            console.print(f"  {mode:4} {mark} {escape(' '.join(answer.text.split()))}", highlight=False, soft_wrap=True)
        for fact in answers[-1].facts:
            console.print(f"       {fact}", style="dim", markup=False, highlight=False, soft_wrap=True)
    return answers


def ask(client: InferScaleClient, question: Question, mode: str) -> Answer:
    """One greedy answer."""
    response = client.chat(
        question.user,
        question.text,
        memory={"mode": mode, "k": RECALL},
        temperature=0,
        max_tokens=ANSWER_TOKENS,
    )
    facts = tuple(fact.text or fact.id or "" for fact in response.facts)
    return Answer(question, mode, response.mode or "", response.text.strip(), facts, response.injected_tokens)


def time_all(
    client: InferScaleClient, memories: Sequence[Memory], tell: Report, questions: int = ttft.QUESTIONS
) -> list[ttft.Row]:
    """Time both modes over the numbers of facts, after one request that is not counted."""
    asked = ttft.spread([q for memory in memories for q in memory.questions], questions)
    samples = []
    ttft.measure(client, asked[:1], 1)
    for k in ttft.FACT_COUNTS:
        tell(f"timing the first token with {k} facts")
        samples += ttft.measure(client, asked, k)
    return ttft.rows(samples)


def score_table(answers: Sequence[Answer]) -> Table:
    """Right answers per mode."""
    table = Table("memory", "right", "tokens injected", title="Score")
    for one in (score.score(answers, mode) for mode in MODES):
        table.add_row(one.mode, f"{one.right} of {one.asked}", str(one.injected_tokens))
    return table


def timing_table(timings: Sequence[ttft.Row]) -> Table:
    """Median time to first token per number of facts and mode."""
    table = Table("facts", "memory", "TTFT ms", "tokens injected", "tokens computed", title="Time to first token")
    for row in timings:
        counts = (str(row.injected_tokens), str(row.prefilled_tokens))
        table.add_row(str(row.k), row.mode, f"{row.ttft_ms:.0f}", *counts)
    return table
