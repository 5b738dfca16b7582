"""`inferscale memories import --from`: memories of another system, under one of our users.

Knows: which reader reads what, and whose memories are meant. Refuses to know: formats, terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from inferscale_server.foreign import json_lines, letta, mem0, zep
from inferscale_server.foreign.record import Fault, LeftOut, Reading

if TYPE_CHECKING:
    from inferscale_sdk import InferScaleClient


class System(StrEnum):
    """Whose memories can be read."""

    mem0 = "mem0"
    zep = "zep"
    letta = "letta"
    jsonl = "jsonl"


READERS: Mapping[System, Callable[[Path], Reading]] = {
    System.mem0: mem0.read,
    System.zep: zep.read,
    System.letta: letta.read,
    System.jsonl: json_lines.read,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A line or position that gave no fact, and why."""

    line: int
    reason: str


@dataclass(slots=True)
class Migration:
    """What became of a file. `left_out` counts what was left out on purpose, by reason."""

    imported: int = 0
    duplicates: int = 0
    failed: list[Failure] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def migrate(client: InferScaleClient, system: System, path: Path, user: str, user_there: str | None) -> Migration:
    """Import the memories of `user_there` (None: of the same name) and those that name nobody, as `user`'s.

    Raises Unreadable with nothing imported, and the client's APIError.
    """
    done, numbers = Migration(), list[int]()
    result = client.memories.import_(user, _facts(READERS[system](path), user_there or user, done, numbers))
    done.imported, done.duplicates = result.imported, result.duplicates
    done.failed += [Failure(numbers[one.line - 1], one.reason) for one in result.failed]
    done.failed.sort(key=lambda one: one.line)
    return done


def _facts(reading: Reading, user: str, done: Migration, numbers: list[int]) -> Iterator[Mapping[str, object]]:
    """The facts to send; the rest is counted in `done`. `numbers` grows by the place of each."""
    for one in reading:
        if isinstance(one, Fault):
            done.failed.append(Failure(one.number, one.reason))
        elif isinstance(one, LeftOut):
            _leave_out(done, one.reason)
        elif one.user not in (None, user):
            _leave_out(done, "of other users")
        else:
            numbers.append(one.number)
            yield one.fields


def _leave_out(done: Migration, reason: str) -> None:
    done.left_out[reason] = done.left_out.get(reason, 0) + 1
