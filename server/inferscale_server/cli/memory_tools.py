"""One user's memory as tools of the Model Context Protocol (MCP), on its official SDK.

Knows: what a model may ask for, and how a failure is told to it. Refuses to know: transports, and other users: no tool
takes a user, so a model cannot be talked into reading somebody else's memory.

The results have no slots: the SDK would take a slot for a field's default.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from inferscale_sdk import AsyncInferScaleClient, Fact, Hit, InferScaleError

INSTRUCTIONS = (
    "Long-term memory of one user. Search it before you answer what may depend on earlier conversations; "
    "add what is worth knowing next time, each fact a sentence that stands on its own."
)

TextArgument = Annotated[str, Field(description="One sentence that stands on its own, with names and dates.")]
QueryArgument = Annotated[str, Field(description="What to look for, as a question or as keywords.")]
CountArgument = Annotated[int, Field(ge=1, le=100, description="At most so many memories.")]
CursorArgument = Annotated[str | None, Field(description="next_cursor of the page before.")]
IdArgument = Annotated[str, Field(description="Id of a memory, as add, search and list return it.")]


@dataclass(frozen=True)
class Remembered:
    """What became of an added memory: stored, duplicate, superseded or failed (then with a reason)."""

    id: str | None
    status: str
    reason: str | None


@dataclass(frozen=True)
class Remembrance:
    """One memory. `score` is its similarity to what was searched for, -1 to 1; times are ISO 8601, UTC."""

    id: str
    text: str
    timestamp: str | None
    score: float | None


@dataclass(frozen=True)
class Found:
    """Memories, best first."""

    memories: list[Remembrance]


@dataclass(frozen=True)
class Listed:
    """One page of memories, oldest first; `next_cursor` leads to the next."""

    memories: list[Remembrance]
    next_cursor: str | None


@dataclass(frozen=True)
class Forgotten:
    """Which memory is gone."""

    id: str


class MemoryTools:
    """The tools, over one user's memory. Each raises ToolError with the server's words when it cannot be done."""

    def __init__(self, client: AsyncInferScaleClient, user: str) -> None:
        self._memories = client.for_user(user).memories

    async def add_memory(self, text: TextArgument) -> Remembered:
        """Remember one fact about the user for later conversations."""
        with _told():
            [outcome] = await self._memories.add(facts=[text])
        if outcome.status == "failed":
            raise ToolError(f"not stored: {outcome.reason}")
        return Remembered(outcome.id, outcome.status, outcome.reason)

    async def search_memories(self, query: QueryArgument, limit: CountArgument = 10) -> Found:
        """Find what is remembered about the user, by meaning, best first."""
        with _told():
            return Found([_shown(hit) for hit in await self._memories.search(query, k=limit)])

    async def list_memories(self, limit: CountArgument = 50, cursor: CursorArgument = None) -> Listed:
        """List what is remembered about the user, oldest first."""
        with _told():
            page = await self._memories.list(limit=limit, cursor=cursor)
        return Listed([_shown(fact) for fact in page.data], page.next_cursor)

    async def delete_memory(self, id: IdArgument) -> Forgotten:
        """Forget one memory for good."""
        with _told():
            await self._memories.delete(id)
        return Forgotten(id)


def memory_server(client: AsyncInferScaleClient, user: str) -> MCPServer:
    """An MCP server with the tools of this user's memory; the client stays the caller's to close."""
    tools = MemoryTools(client, user)
    server = MCPServer("inferscale", instructions=INSTRUCTIONS, log_level="WARNING")
    reads, adds = ToolAnnotations(read_only_hint=True), ToolAnnotations(destructive_hint=False)
    ends = ToolAnnotations(destructive_hint=True)
    server.add_tool(tools.add_memory, annotations=adds, structured_output=True)
    server.add_tool(tools.search_memories, annotations=reads, structured_output=True)
    server.add_tool(tools.list_memories, annotations=reads, structured_output=True)
    server.add_tool(tools.delete_memory, annotations=ends, structured_output=True)
    return server


@contextmanager
def _told() -> Iterator[None]:
    """Failures in words for the model, without a traceback. What the client refuses before it sends is one, too."""
    try:
        yield
    except (InferScaleError, ValueError) as error:
        raise ToolError(str(error)) from error


def _shown(fact: Fact) -> Remembrance:
    return Remembrance(fact.id, fact.text, _iso(fact.timestamp), fact.score if isinstance(fact, Hit) else None)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
