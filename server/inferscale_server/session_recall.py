"""The read verb inside a session: keep the block, note what is new, choose anew when that is due or cheaper.

Joins recall and the sessions. Refuses to know HTTP, templates and vLLM: whoever calls renders the frames.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from inferscale_server.filters import Filter
from inferscale_server.job import line_of
from inferscale_server.kv_codec import digest_of
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan, from_cache, resumed, without_injection
from inferscale_server.recall import Recall, Recollection
from inferscale_server.session import (
    MAX_NOTED,
    Block,
    Session,
    SessionReason,
    SessionState,
    Terms,
    addition,
    unfit,
)
from inferscale_server.session_notes import Note, Noted, Said, UserTurn, texts_by_place, user_turns
from inferscale_server.sessions import Sessions
from inferscale_server.staged_plan import staged_plan
from inferscale_server.staging import ColdTier, Stager
from inferscale_server.types import Mode, Owner

FrameOf = Callable[[Mapping[int, str]], Awaitable[Frame | None]]
"""Renders the conversation with notes before the messages at these places; None when it cannot be framed."""


@dataclass(frozen=True, slots=True)
class SessionAsk:
    """One turn of a session: what was said so far, and what is asked of the memory. `refusal`: why it cannot use KV."""

    owner: Owner
    session_id: str
    said: tuple[Said, ...]
    mode: Mode
    k: int | None = None
    min_score: float | None = None
    context: tuple[str, ...] = ()
    where: Filter | None = None
    refusal: str | None = None

    @property
    def query(self) -> str:
        """What the user said last."""
        return next((said.text for said in reversed(self.said) if said.role == "user"), "")


@dataclass(frozen=True, slots=True)
class SessionTold:
    """What became of the session in this turn, for the response. `noted`: in the whole prompt, worst first."""

    state: SessionState
    reason: SessionReason
    turn: int
    block: frozenset[str]
    noted: tuple[Noted, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """What one turn sends. Without a plan: `found` goes in as message text, or there is nothing to remember. A plan
    without `told` holds no memory, since there is no room for any."""

    found: Recollection
    plan: MemoryPlan | None = None
    told: SessionTold | None = None
    staged: Mapping[int, ColdTier] = field(default_factory=dict)
    stage_ms: float = 0.0
    plan_ms: float = 0.0
    """Without the rendering of frames, as in a chat without a session."""

    @property
    def shown(self) -> tuple[MemoryLine, ...]:
        """All memory in the prompt: the block, then notes; scores are those of this turn's question."""
        if self.plan is None or self.told is None:
            return ()
        scores = {hit.fact.id: hit.score for hit in self.found.hits}
        notes = (MemoryLine(one.name, one.text, one.score, (), None) for one in self.told.noted)
        return tuple(replace(line, score=scores.get(line.name or "")) for line in (*self.plan.lines, *notes))


@dataclass(slots=True)
class _Turn:
    """A turn under way. `notes`: those in its messages, as they were when it came, by the digests of their turns.

    Another turn may note more meanwhile, but what this one sends and tells rests on these.
    """

    ask: SessionAsk
    session: Session
    block: Block | None
    turns: tuple[UserTurn, ...]
    notes: Mapping[str, Note]
    epoch: int
    room_of: Callable[[Frame], int]
    frame_of: FrameOf
    rendering_s: float = 0.0
    why: SessionReason | None = None
    """Why there is no block, where this turn has found that out."""
    _frames: dict[tuple[tuple[int, str], ...], Frame | None] = field(default_factory=dict)

    async def frame(self, notes: Mapping[int, str]) -> Frame | None:
        """The conversation with these notes; rendering takes milliseconds, so each is rendered once."""
        key = tuple(sorted(notes.items()))
        if key not in self._frames:
            started = perf_counter()
            try:
                self._frames[key] = await self.frame_of(notes)
            finally:
                self.rendering_s += perf_counter() - started
        return self._frames[key]

    @property
    def newest(self) -> str:
        """The digest of the turn that is answered now."""
        return self.turns[-1].digest if self.turns else ""

    @property
    def noted(self) -> tuple[Noted, ...]:
        """Everything noted in its messages, oldest first."""
        return tuple(noted for note in self.notes.values() for noted in note.noted)

    def terms(self, frame: Frame, epoch: int) -> Terms:
        """What holds now."""
        return Terms(digest_of(frame.before), self.ask.where, self.ask.mode, self.ask.refusal, epoch)


class SessionRecall:
    """Plans the turns of sessions. `harmless` takes the control tokens out of a note; `clock` in Unix seconds;
    `block_tokens`: what the prefix cache keeps is whole blocks of so many, 0 when there is none."""

    def __init__(
        self,
        recall: Recall,
        sessions: Sessions,
        stager: Stager,
        harmless: Callable[[str], str] = lambda text: text,
        clock: Callable[[], float] = time.time,
        block_tokens: int = 0,
    ) -> None:
        self._recall, self._sessions, self._stager = recall, sessions, stager
        self._harmless, self._clock, self._block_tokens = harmless, clock, block_tokens

    async def turn(self, ask: SessionAsk, frame_of: FrameOf, room_of: Callable[[Frame], int]) -> SessionTurn:
        """The prompt of this turn. Raises Unavailable when embedding fails."""
        session = self._sessions.of(ask.owner, ask.session_id)
        turns, epoch = user_turns(ask.said), self._epoch(ask.owner)
        turn = _Turn(ask, session, session.block, turns, session.notes_in(turns), epoch, room_of, frame_of)
        found, frame = await asyncio.gather(
            self._recall.find(ask.owner, ask.query, ask.k, ask.min_score, ask.context, ask.where),
            turn.frame(texts_by_place(turns, turn.notes)),
        )
        if frame is None and turn.noted and (frame := await turn.frame({})) is not None:  # the notes were too much
            if session.block is turn.block:
                session.drop("no_room")
            turn.block, turn.notes, turn.why = None, {}, "no_room"
        if frame is None or (turn.block is None and found.empty):
            return SessionTurn(found)
        started, turn.rendering_s = perf_counter(), 0.0
        session.turns += 1
        served = await self._served(turn, found, frame)
        took_s = perf_counter() - started - turn.rendering_s
        return replace(served, plan_ms=1e3 * took_s - served.stage_ms)

    async def _served(self, turn: _Turn, found: Recollection, frame: Frame) -> SessionTurn:
        why = turn.why or turn.session.lost
        if turn.block is not None:
            kept = self._stale(turn, turn.block, frame) or await self._kept(turn, turn.block, found, frame)
            if isinstance(kept, SessionTurn):
                return kept
            why = kept
        return await self._begun(turn, found, why)

    # Keeping the block

    def _stale(self, turn: _Turn, block: Block, frame: Frame, new: Sequence[Noted] = ()) -> SessionReason | None:
        owner = turn.ask.owner
        names = [*block.names, *(one.name for one in (*turn.noted, *new) if one.name is not None)]
        facts = (self._recall.memory.peek(owner.itself, name) for name in names)
        stale = block.stale(turn.terms(frame, self._epoch(owner))) or unfit(facts, turn.ask.where, self._clock())
        if stale is not None:
            return stale
        return "no_room" if block.plan.memory_tokens > turn.room_of(frame) else None

    def _lie_in_slab(self, block: Block) -> bool:
        """Are these very encodings still there? Asking is a use: the chunks of a living session are not evicted."""
        found = [self._recall.catalog.get(chunk.key) for chunk in block.plan.chunks]
        return all(
            here is not None and here.stamp == chunk.stamp for here, chunk in zip(found, block.plan.chunks, strict=True)
        )

    async def _kept(self, turn: _Turn, block: Block, found: Recollection, frame: Frame) -> SessionTurn | SessionReason:
        """The turn with the old block and a note, or why the block must be chosen anew."""
        session, noted = turn.session, turn.noted
        old = turn.notes.get(turn.newest, Note())
        new = addition(self._noted(found), block, noted, old.left_out)
        note = old.then(new.noted, new.left_out)
        if new.noted:
            if not turn.turns:  # no message of the user's to note it in
                return "no_room"
            if len(noted) + len(new.noted) > MAX_NOTED:
                return "too_many_notes"
            plain = await turn.frame({})
            kept_tokens = self._kept_tokens(turn, block, frame, old, note)
            if plain is not None and self._is_cheaper(turn, found, plain, kept_tokens):
                return "cheaper"
            again = await turn.frame(texts_by_place(turn.turns, {**turn.notes, turn.newest: note}))
            if again is None:
                return "no_room"
            frame = again
            if stale := self._stale(turn, block, frame, new.noted):  # a fact may have gone while it was rendered
                return stale
        if session.block is block:  # else it was dropped meanwhile: what it said must not come back
            session.note(turn.newest, note)
        told = SessionTold("kept", "same_block", session.turns, block.names, (*noted, *new.noted))
        return SessionTurn(found, self._resumed(turn.ask, block, frame), told)

    def _resumed(self, ask: SessionAsk, block: Block, frame: Frame) -> MemoryPlan:
        """The block in this turn's prompt: injected, found in the prefix cache, or as text for this once."""
        plan = resumed(block.plan, frame)
        if plan.mode == "text":
            return plan
        reason = "requested" if ask.mode == "text" else ask.refusal
        if reason is not None:
            return without_injection(plan, reason)
        return plan if self._lie_in_slab(block) else from_cache(plan)

    def _kept_tokens(self, turn: _Turn, block: Block, frame: Frame, old_note: Note, note: Note) -> int:
        """Tokens that the old block has computed with this note: those in no whole cached block, and what is new."""
        count = self._recall.tokenize
        newest, more = len(count(turn.ask.query)), len(count(note.text)) - len(count(old_note.text))
        injected = block.plan.injected_tokens
        old = len(frame.before) + block.plan.memory_tokens + len(frame.after) - newest - injected
        computed = min(old, (injected + old) % self._block_tokens) if self._block_tokens else old
        return computed + newest + more

    def _is_cheaper(self, turn: _Turn, found: Recollection, plain: Frame, kept_tokens: int) -> bool:
        """Would a new block have less computed: the conversation without notes, and memory that lies in no slab?"""
        plan = self._recall.plan(found, plain, turn.ask.mode, turn.room_of(plain), turn.ask.refusal)
        return len(plan.prompt_ids) - plan.injected_tokens < kept_tokens

    def _noted(self, found: Recollection) -> list[Noted]:
        """What was found, as it would stand in a note; best first, like the lines of a block."""
        words, harmless = self._recall.wording, self._harmless
        context = [Noted(None, text, harmless(words.line(text)), None) for text in reversed(found.context)]
        facts = [Noted(hit.fact.id, hit.fact.text, harmless(line_of(hit.fact, words)), hit.score) for hit in found.hits]
        return [*context, *facts]

    # Choosing a block

    async def _begun(self, turn: _Turn, found: Recollection, why: SessionReason) -> SessionTurn:
        """A new block for this turn's question, without notes."""
        session, ask = turn.session, turn.ask
        if found.empty:
            if session.block is turn.block:  # else another turn has chosen one meanwhile
                session.drop(why)
            return SessionTurn(found)
        frame = await turn.frame({})
        if frame is None:
            return SessionTurn(found)
        asked = (found, frame, ask.mode, turn.room_of(frame), ask.refusal)
        planned = await staged_plan(self._recall, self._stager, *asked)
        plan = planned.plan
        if not plan.lines:
            if session.block is turn.block:
                session.drop("no_room")
            return SessionTurn(found, plan)
        if session.block is turn.block and self._epoch(ask.owner) == turn.epoch:
            session.begin(self._block(plan, turn.terms(frame, turn.epoch)), turn.newest)
        state: SessionState = "begun" if why == "first_turn" else "replanned"
        names = frozenset(line.name for line in plan.lines if line.name is not None)
        told = SessionTold(state, why, session.turns, names)
        return SessionTurn(found, plan, told, planned.staged, planned.stage_ms)

    @staticmethod
    def _block(plan: MemoryPlan, terms: Terms) -> Block:
        lines = tuple(replace(line, score=None) for line in plan.lines)
        return Block(replace(plan, prompt_ids=(), lines=lines), terms)

    def _epoch(self, owner: Owner) -> int:
        return self._recall.memory.epoch(owner.itself)
