"""A session: the memory block that a conversation keeps, and what was noted since.

Memory at the front that changes with every turn would throw the prefix cache of the whole history away. So the block
stays, and what becomes relevant later is noted in the turn that needs it. Pure state and its questions; refuses to know
who searches and who renders.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from inferscale_server.filters import Filter
from inferscale_server.plan import MemoryPlan
from inferscale_server.session_notes import Note, Noted, UserTurn
from inferscale_server.types import Fact, Mode

NOTE_FACTS = 8
"""Facts noted in one turn, best first; what else was found is left out. A caller's context is always noted."""
MAX_NOTED = 24
"""Texts noted in one conversation before its block is chosen anew."""
MAX_TURNS = 512
"""Turns of a session whose notes are remembered; the oldest is forgotten for a new one."""

SessionState = Literal["begun", "kept", "replanned"]
SessionReason = Literal[
    "first_turn",
    "same_block",
    "facts_changed",
    "fact_expired",
    "system_prompt",
    "filter",
    "mode",
    "no_room",
    "kv_gone",
    "too_many_notes",
    "cheaper",
]
"""Why a block was chosen, or kept (docs/sessions.md)."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a block was chosen under: another header, filter, mode or epoch needs another block.

    `refusal`: why that turn could not use KV.
    """

    header: str
    where: Filter | None
    mode: Mode
    refusal: str | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Block:
    """The memory that a session keeps. `plan` without a prompt."""

    plan: MemoryPlan
    terms: Terms

    def stale(self, now: Terms) -> SessionReason | None:
        """Why this block cannot serve a turn under these terms; None: it can."""
        if now.epoch != self.terms.epoch:
            return "facts_changed"
        if now.header != self.terms.header:
            return "system_prompt"
        if now.where != self.terms.where:
            return "filter"
        text_for_once = self.terms.mode == "text" or self.terms.refusal is not None
        return "mode" if text_for_once and now.mode != "text" and now.refusal is None else None

    @property
    def names(self) -> frozenset[str]:
        """Ids of the facts in it."""
        return frozenset(line.name for line in self.plan.lines if line.name is not None)

    @property
    def context(self) -> frozenset[str]:
        """The caller's texts in it."""
        return frozenset(line.text for line in self.plan.lines if line.name is None)


@dataclass(slots=True)
class Session:
    """One conversation of one owner. `lost` says why there is no block any more."""

    block: Block | None = None
    lost: SessionReason = "first_turn"
    turns: int = 0
    notes: OrderedDict[str, Note] = field(default_factory=OrderedDict)  # by turn digest

    def begin(self, block: Block, newest: str) -> None:
        """This block from now on; `newest` is the digest of the turn that it was chosen for."""
        self.block = block
        self.notes.clear()
        self.note(newest, Note())

    def note(self, turn: str, note: Note) -> None:
        """Remember what was noted in a turn."""
        self.notes[turn] = note
        while len(self.notes) > MAX_TURNS:
            self.notes.popitem(last=False)

    def drop(self, why: SessionReason) -> None:
        """Forget block and notes, and with them every text."""
        if self.block is not None:
            self.block, self.lost = None, why
        self.notes.clear()

    def notes_in(self, turns: Iterable[UserTurn]) -> dict[str, Note]:
        """What was noted in these turns, by their digests, oldest first."""
        return {turn.digest: self.notes[turn.digest] for turn in turns if turn.digest in self.notes}


@dataclass(frozen=True, slots=True)
class Addition:
    """What a turn adds to its note, worst first, and the facts that it leaves out."""

    noted: tuple[Noted, ...]
    left_out: frozenset[str] = frozenset()


def addition(found: Sequence[Noted], block: Block, noted: Sequence[Noted], considered: frozenset[str]) -> Addition:
    """Of what was found (best first), what stands neither in the block nor in a note yet."""
    names = block.names | considered | {one.name for one in noted if one.name is not None}
    texts = block.context | {one.text for one in noted if one.name is None}
    context = [one for one in found if one.name is None and one.text not in texts]
    facts = [one for one in found if one.name is not None and one.name not in names]
    chosen = [*context, *facts[:NOTE_FACTS]]
    return Addition(tuple(reversed(chosen)), frozenset(one.name for one in facts[NOTE_FACTS:] if one.name))


def unfit(facts: Iterable[Fact | None], where: Filter | None, at: float) -> SessionReason | None:
    """Why facts of a block or a note, as they are now, may not stand in a prompt at this time (Unix seconds).

    None as a fact: it is gone. A change of what a fact says changes the owner's epoch besides.
    """
    for fact in facts:
        if fact is None or (where is not None and not where.matches(fact)):
            return "facts_changed"
        if fact.expired(at):
            return "fact_expired"
    return None
