"""`inferscale chat`: ask one user's memory from a terminal and see what was remembered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from inferscale_server.cli.connection import KeyOption, UrlOption, UserOption, connect

if TYPE_CHECKING:
    from inferscale_sdk import ChatResponse, InferScaleClient, MemoryOptions

QUIT = "/quit"

ModeOption = Annotated[
    Literal["auto", "kv", "text", "off"], typer.Option("--mode", help="How memory reaches the model.")
]
CountOption = Annotated[int | None, typer.Option("--k", min=1, help="Facts to recall, default the server's.")]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="chat")(chat)


def chat(
    user: UserOption,
    mode: ModeOption = "auto",
    k: CountOption = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Ask questions and see the facts that each answer was given. /quit or Ctrl-D ends it."""
    from inferscale_sdk import InferScaleError

    console, errors = Console(), Console(stderr=True)
    asked = failed = 0
    memory: MemoryOptions = {"mode": mode}
    if k is not None:
        memory["k"] = k
    with connect(url, api_key) as client:
        reached = client.ready()
        if not reached:
            line = f"no answer from {client.base_url}: is `inferscale serve` running, and ready?"
            errors.print(f"[red]{escape(line)}[/red]", soft_wrap=True)
        for question in questions(console):
            asked += 1
            try:
                answer(client, console, user, question, memory)
            except InferScaleError as error:
                failed += 1
                errors.print(f"[red]{escape(str(error))}[/red]")
    if (failed or not (reached or asked)) and not sys.stdin.isatty():
        raise typer.Exit(2)  # a script has nobody who reads


def questions(console: Console) -> Iterator[str]:
    """Lines typed by a person, until /quit, end of input or Ctrl-C."""
    prompt = "[bold]you>[/bold] " if sys.stdin.isatty() else ""
    while True:
        try:
            line = console.input(prompt).strip().encode("utf-8", "replace").decode("utf-8")
        except (EOFError, KeyboardInterrupt):
            return
        if line == QUIT:
            return
        if line:
            yield line


def answer(client: InferScaleClient, console: Console, user: str, question: str, memory: MemoryOptions) -> None:
    """Print one answer as it comes, then how it was served."""
    with client.chat(user, question, stream=True, memory=memory, temperature=0) as stream:
        for piece in stream.text_stream:
            console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
        response = stream.get_final_response()
    console.print()
    for line in provenance(response):
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def provenance(response: ChatResponse) -> list[str]:
    """How an answer was served, and from which facts, best first."""
    ttft = response.timings_ms.get("ttft")
    served = f"{response.mode}, {response.injected_tokens} tokens injected"
    reason = f" ({response.reason})" if response.reason else ""
    timing = f", first token after {ttft:.0f} ms" if ttft is not None else ""
    facts = [f"  {_score(fact.score)}  {fact.text or fact.id}" for fact in response.facts]
    return [served + timing + reason, *facts]


def _score(score: float | None) -> str:
    return "    " if score is None else f"{score:4.2f}"
