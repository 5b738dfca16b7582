"""What the turns of a conversation cost with each kind of memory, and the ratios. Pure; the bound is the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from inferscale_server.bench.cell import Ratio, percentile
from inferscale_server.bench.losses import Losses

FLOOR, TEXT, KV_SESSION = "off", "text", "kv, session"
SESSION_OVER_TEXT_AT_MOST = 1.0


@dataclass(frozen=True, slots=True)
class TalkTurn:
    """One answered turn; `conversation` from 0, `turn` from 1. Tokens of the prompt, milliseconds at the client.

    `session` is what the server says of the session, empty when it says nothing; `wanted` is whether it should.
    """

    memory: str
    conversation: int
    turn: int
    first_token_ms: float
    prefilled_tokens: int
    injected_tokens: int
    asked: str
    served: str
    reason: str
    session: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class SessionCell:
    """One turn with one kind of memory: medians of the conversations."""

    memory: str
    turn: int
    first_token_ms: float
    prefilled_tokens: float
    injected_tokens: float


@dataclass(frozen=True, slots=True)
class SessionTotal:
    """Whole conversations with one kind of memory: medians of their sums, and the last percentile of all turns.

    `failed` conversations are not among them.
    """

    memory: str
    conversations: int
    first_token_ms: float
    prefilled_tokens: float
    turn_p99_ms: float
    failed: int = 0


def session_cells(turns: Sequence[TalkTurn], memories: Sequence[str]) -> list[SessionCell]:
    """One for each turn and kind of memory, in the order of `memories`."""
    numbers = sorted({turn.turn for turn in turns})
    return [_cell(memory, number, turns) for memory in memories for number in numbers]


def _cell(memory: str, number: int, turns: Sequence[TalkTurn]) -> SessionCell:
    here = [turn for turn in turns if (turn.memory, turn.turn) == (memory, number)]
    return SessionCell(
        memory=memory,
        turn=number,
        first_token_ms=median(turn.first_token_ms for turn in here),
        prefilled_tokens=median(turn.prefilled_tokens for turn in here),
        injected_tokens=median(turn.injected_tokens for turn in here),
    )


def session_totals(
    turns: Sequence[TalkTurn], memories: Sequence[str], losses: Losses | None = None
) -> list[SessionTotal]:
    """One for each kind of memory, with what was lost."""
    return [
        _total(memory, [turn for turn in turns if turn.memory == memory], losses.count(memory) if losses else 0)
        for memory in memories
    ]


def _total(memory: str, turns: Sequence[TalkTurn], failed: int) -> SessionTotal:
    talks = [[turn for turn in turns if turn.conversation == talk] for talk in {turn.conversation for turn in turns}]
    return SessionTotal(
        memory=memory,
        conversations=len(talks),
        first_token_ms=median(sum(turn.first_token_ms for turn in talk) for talk in talks),
        prefilled_tokens=median(sum(turn.prefilled_tokens for turn in talk) for talk in talks),
        turn_p99_ms=percentile([turn.first_token_ms for turn in turns], 0.99),
        failed=failed,
    )


def session_ratios(totals: Sequence[SessionTotal]) -> list[Ratio]:
    """KV in a session over text with the prefix cache, over a whole conversation."""
    by_memory = {total.memory: total for total in totals}
    text, kept = by_memory[TEXT], by_memory[KV_SESSION]
    waits, tokens = kept.first_token_ms / text.first_token_ms, kept.prefilled_tokens / text.prefilled_tokens
    return [
        Ratio(f"{KV_SESSION} / {TEXT}: time to first token", waits, SESSION_OVER_TEXT_AT_MOST, False),
        Ratio(f"{KV_SESSION} / {TEXT}: tokens computed", tokens, SESSION_OVER_TEXT_AT_MOST, False),
    ]


def session_complaints(turns: Sequence[TalkTurn]) -> list[str]:
    """Why this run is no measurement; empty when it is one."""
    other = [turn for turn in turns if turn.served != turn.asked]
    lost = [turn for turn in turns if turn.wanted and not turn.session]
    return [
        *(
            f"turn {turn.turn} of {turn.memory} was served as {turn.served or 'nothing'} ({turn.reason})"
            for turn in other
        ),
        *(f"turn {turn.turn} of {turn.memory} was in no session" for turn in lost),
    ]
