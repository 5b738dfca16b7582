"""`inferscale memories`: look into one user's facts and change them, through the SDK."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from inferscale_server.cli import transfer
from inferscale_server.cli.command import CommandLine
from inferscale_server.cli.connection import (
    AgentOption,
    KeyOption,
    RunOption,
    UrlOption,
    UserOption,
    checked_id,
    connect,
)
from inferscale_server.cli.encoding_bar import WaitOption, wait_encoded
from inferscale_server.cli.folder import waiting
from inferscale_server.cli.messages import InferOption, MessagesOption, read_messages
from inferscale_server.cli.moment import ACCEPTED, checked_expiry, expiry, moment
from inferscale_server.cli.rows import counted, show, show_pairs

if TYPE_CHECKING:
    from inferscale_sdk import FactInput

app = CommandLine(
    help="Add, find, change and delete one user's facts, take them out and put them in.", no_args_is_help=True
)
transfer.register(app)

STDIN = "-"
LISTED = ("id", "timestamp", "session_id", "speaker", "text", "metadata")
"""What a person sees of a fact, where it has it."""

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for other programs.")]
IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the fact.", show_default=False, callback=checked_id)
]
TextsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT...]", help="One fact each; none or -: the lines of stdin.", show_default=False),
]
SpeakerOption = Annotated[str | None, typer.Option("--speaker", help="Who said it.")]
TimeOption = Annotated[
    datetime | None,
    typer.Option("--time", metavar="TIME", parser=moment, help=f"When it was said: {ACCEPTED}."),
]
OfSessionOption = Annotated[
    str | None, typer.Option("--session", help="Which conversation it was said in.", callback=checked_id)
]
SessionOption = Annotated[str | None, typer.Option("--session", help="Which conversation it was said in.")]
OfAgentOption = Annotated[
    str | None, typer.Option("--agent-id", help="Which agent of yours it belongs to.", callback=checked_id)
]
OfRunOption = Annotated[str | None, typer.Option("--run-id", help="Which run of the agent.", callback=checked_id)]
ExpiresOption = Annotated[
    str | None,
    typer.Option(
        "--expires", metavar="TIME", help="When to forget it, written as for --time; or never.", callback=checked_expiry
    ),
]
MetadataOption = Annotated[str | None, typer.Option("--metadata", metavar="JSON", help="An object of your own fields.")]
FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="JSON", help='Only what matches, as {"year": {"gte": 2024}}.')
]


@app.command()
def add(
    user: UserOption,
    texts: TextsArgument = None,
    messages: MessagesOption = None,
    infer: InferOption = None,
    speaker: SpeakerOption = None,
    session: OfSessionOption = None,
    time: TimeOption = None,
    expires: ExpiresOption = None,
    metadata: MetadataOption = None,
    agent_id: OfAgentOption = None,
    run_id: OfRunOption = None,
    wait: WaitOption = False,
    idempotency_key: Annotated[str | None, typer.Option("--idempotency-key", help="Makes a repeat safe.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Remember facts, each a sentence that stands on its own, or what a conversation says."""
    if messages is None and infer is not None:
        raise typer.BadParameter("--infer and --no-infer need --messages: facts are stored as they are")
    if messages is not None and (texts or speaker is not None):
        raise typer.BadParameter("--messages takes no TEXT and no --speaker: a message has its role and name")
    turns = None if messages is None else read_messages(messages)
    facts: list[FactInput] | None = None
    if turns is None:
        facts = [{"text": text, "speaker": speaker} for text in _texts(texts)]
    fields = _object(metadata, "--metadata")
    with connect(url, api_key) as client:
        with waiting("storing" if turns is None else "making facts of the conversation"):
            outcomes = client.memories.add(
                user,
                facts=facts,
                messages=turns,
                infer=infer,
                session_id=session,
                timestamp=time,
                metadata=fields,
                expires_at=expiry(expires),
                agent_id=agent_id,
                run_id=run_id,
                idempotency_key=idempotency_key,
            )
        if wait:
            wait_encoded(client, user)
    show(outcomes, ("id", "status", "text", "reason"), as_json)
    if any(outcome.status == "failed" for outcome in outcomes):
        raise typer.Exit(1)


@app.command(name="list")
def list_(
    user: UserOption,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many, oldest first.")] = None,
    where: FilterOption = None,
    agent_id: AgentOption = None,
    run_id: RunOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List a user's facts, oldest first."""
    condition = _object(where, "--filter")
    with connect(url, api_key) as client:
        facts = client.memories.list(user, filter=condition, agent_id=agent_id, run_id=run_id)
        narrowed = any(given is not None for given in (condition, agent_id, run_id))
        none = f"no memories of {user}{' match' if narrowed else ''}"
        show(islice(facts, limit), LISTED, as_json, none)


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What to look for.", show_default=False)],
    user: UserOption,
    k: Annotated[int | None, typer.Option("--k", min=1, help="At most so many, default the server's.")] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Leave out what is less near, -1 to 1.")
    ] = None,
    where: FilterOption = None,
    agent_id: AgentOption = None,
    run_id: RunOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Find the facts nearest to a query, best first."""
    condition = _object(where, "--filter")
    with connect(url, api_key) as client:
        hits = client.memories.search(
            user, query, k=k, min_score=min_score, filter=condition, agent_id=agent_id, run_id=run_id
        )
        show(hits, ("id", "score", "text"), as_json, f"no memories of {user} match")


@app.command()
def get(
    fact_id: IdArgument,
    user: UserOption,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show one fact."""
    with connect(url, api_key) as client:
        fact = client.memories.get(fact_id, user=user)
    show([fact], (*LISTED, "expires_at"), as_json)


@app.command()
def update(
    fact_id: IdArgument,
    user: UserOption,
    text: Annotated[str | None, typer.Option("--text", help="The new text; - reads it from stdin.")] = None,
    metadata: MetadataOption = None,
    time: TimeOption = None,
    expires: ExpiresOption = None,
    speaker: SpeakerOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Change one fact. Metadata is merged, and null removes a key; an empty --speaker or --session removes it."""
    from inferscale_sdk import NOT_GIVEN

    if all(given is None for given in (text, metadata, time, expires, speaker, session)):
        raise typer.BadParameter(
            "nothing to change: give --text, --metadata, --time, --expires, --speaker or --session"
        )
    new_text = sys.stdin.read().strip() if text == STDIN else text
    fields = _object(metadata, "--metadata")
    expires_at = NOT_GIVEN if expires is None else expiry(expires)
    with connect(url, api_key) as client:
        fact = client.memories.update(
            fact_id,
            user=user,
            text=new_text,
            metadata=fields,
            timestamp=NOT_GIVEN if time is None else time,
            expires_at=expires_at,
            speaker=NOT_GIVEN if speaker is None else speaker or None,
            session_id=NOT_GIVEN if session is None else session or None,
        )
    show([fact], (*LISTED, "updated_at", "expires_at"), as_json)


@app.command()
def history(
    fact_id: IdArgument,
    user: UserOption,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show what happened to one fact, oldest first; of a deleted one not what it said."""
    with connect(url, api_key) as client:
        show(client.memories.history(fact_id, user=user), ("at", "event", "text", "metadata"), as_json)


@app.command()
def footprint(user: UserOption, as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Show what a user's memory takes: facts, tokens, bytes in each tier, and how many facts wait for their KV."""
    with connect(url, api_key) as client:
        taken = client.footprint(user)
    if as_json:
        print(taken.model_dump_json())
        return
    show([taken], ("facts", "tokens", "queued"), as_json)
    show_pairs("tier", "bytes", {tier: f"{size:,}" for tier, size in taken.bytes.items()})


@app.command()
def delete(
    user: UserOption,
    fact_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="Id of the fact.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of the user's facts instead of one.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --all.")] = False,
    agent_id: AgentOption = None,
    run_id: RunOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Forget one fact, or all of a user's, or all of one agent or run."""
    if (fact_id is None) != everything:
        raise typer.BadParameter("give either the ID of a fact or --all")
    scope = {name: given for name, given in (("agent_id", agent_id), ("run_id", run_id)) if given is not None}
    if scope and not everything:
        raise typer.BadParameter("--agent-id and --run-id need --all")
    if everything and not yes:
        of = "".join(f", {name} {given}" for name, given in scope.items())
        typer.confirm(f"Forget everything about {user}{of}?", abort=True)
    with connect(url, api_key) as client:
        memories = client.memories
        result = memories.delete_all(user, **scope) if fact_id is None else memories.delete(fact_id, user)
    said = {"deleted": result.deleted} if fact_id is None else {"id": fact_id, "deleted": True}
    print(json.dumps(said) if as_json else f"deleted {fact_id or counted(result.deleted, 'fact')}")


def _texts(texts: list[str] | None) -> list[str]:
    """The facts of the command line, or the lines of stdin. Raises typer.BadParameter when there are none."""
    if texts and texts != [STDIN]:
        return texts
    if not texts and sys.stdin.isatty():
        raise typer.BadParameter("no text: give one as an argument, or several as lines on stdin")
    lines = [line.strip() for line in sys.stdin if line.strip()]
    if not lines:
        raise typer.BadParameter("stdin holds no text")
    return lines


def _object(written: str | None, option: str) -> dict[str, object] | None:
    """A JSON object that was typed. Raises typer.BadParameter."""
    if written is None:
        return None
    try:
        parsed = json.loads(written)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"{option}: not JSON: {error.msg} (character {error.pos})") from error
    if not isinstance(parsed, dict):
        raise typer.BadParameter(f"{option}: must be a JSON object")
    return parsed
