"""The quality probe: do facts that were encoded apart answer a handful of questions as well as prefilled ones?

Chooses how many of the memory's last tokens are computed afresh for each answer when the operator has not. A handful
of questions cannot rank recipes: `inferscale bench accuracy` measures. Red only when injected facts are plainly worse
than none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from inferscale_server.catalog import Chunk
from inferscale_server.command import Command, Injection
from inferscale_server.engine.probe_rows import ProbeRows, joined, last_rows
from inferscale_server.extents import first_rows
from inferscale_server.plan import Frame

TAIL_TOKENS = 64
"""The tail that is tried beside none."""
LEAST_GAIN = 0.1
"""Nats a token. A model that gains less from the facts than this cannot lose anything that is worth a tail."""
LARGEST_LOSS = 0.1
"""Share of the gain that may be lost without a tail."""

MOST_GAIN = 7
"""Red needs so many questions at least that prefilled facts make the right answer likelier; by chance: 1 in 28."""
MOST_LOSE = 6
"""And so many that injected facts make it less likely than none; by chance: 1 in 7."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer one of the facts holds."""

    fact: str
    question: str
    answer: str


QUESTIONS = (
    Question("Nora's parrot is called Admiral.", "What is Nora's parrot called?", "Admiral"),
    Question("Nora works as a glass blower in Lisbon.", "Where does Nora work?", "in Lisbon"),
    Question("Tom, Nora's brother, sails a red boat.", "What colour is Tom's boat?", "red"),
    Question("Nora plays the harp on Thursdays.", "Which instrument does Nora play?", "the harp"),
    Question("Nora moved house in April 2021.", "When did Nora move house?", "April 2021"),
    Question("Tom is allergic to walnuts.", "What is Tom allergic to?", "walnuts"),
    Question("Nora's favourite soup is made of pumpkin.", "What is Nora's favourite soup made of?", "pumpkin"),
    Question("Their mother Ines teaches chemistry.", "What does Ines teach?", "chemistry"),
)
DISTRACTIONS = (
    "Nora keeps her keys in a blue bowl.",
    "Tom ran a marathon in Oslo last year.",
    "Ines collects old maps of rivers.",
    "Nora's car failed its inspection twice.",
    "Tom wants to learn how to bake bread.",
    "Nora saw a fox behind the workshop.",
    "Ines will retire in the summer of 2027.",
    "Tom and Nora share a garden plot.",
)


@dataclass(frozen=True, slots=True)
class Quality:
    """Mean loss of the right answers' tokens, in nats a token: without facts, with prefilled ones, with injected ones,
    and with the last TAIL_TOKENS of the injected ones computed afresh; and the tail that follows from it.

    `gain`: how many questions' answers are likelier with prefilled facts than without; `lose`: how many are less
    likely with injected ones than without.
    """

    off: float
    text: float
    kv: float
    kv_with_tail: float
    tail_tokens: int
    gain: int = 0
    lose: int = 0

    @property
    def reason(self) -> str | None:
        """Why facts must not be injected: they are worse than none; None where that is not plain."""
        if self.off - self.text < LEAST_GAIN or self.gain < MOST_GAIN or self.lose < MOST_LOSE:
            return None
        return (
            f"quality: injected facts answer worse than none: loss {self.kv:.2f} with them, {self.off:.2f} without, "
            f"{self.text:.2f} when they are prefilled"
        )


class ScoringDoor(Protocol):
    """The part of the engine's door that scores answers."""

    async def answer_logprobs(
        self, prompt_ids: Sequence[int], answer_ids: Sequence[int], command: Command | None
    ) -> list[float]:
        """Log probability of each token of a given answer behind a prompt."""


Tokenize = Callable[[str], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class FactWords:
    """How a fact becomes tokens: `line` is the fact as it stands in a prompt."""

    line: Callable[[str], str]
    tokenize: Tokenize


EncodedBehind = Literal["nothing", "header", "facts"]
"""What a recipe encodes facts behind, as far as a probe can tell recipes apart."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question inside its frame, with the lines of the memory in prompt order and their encodings."""

    frame: Frame
    lines: tuple[Injection, ...]
    answer: tuple[int, ...]

    def prompt(self, with_memory: bool) -> tuple[int, ...]:
        """All token ids before the answer."""
        memory = joined(self.lines).token_ids if with_memory else ()
        return (*self.frame.before, *memory, *self.frame.after)

    def command(self, header: Chunk, tail: int) -> Command:
        """Inject header and memory, but for the last `tail` tokens."""
        whole = joined([header, *self.lines])
        length = max(len(whole.token_ids) - tail, len(header.token_ids))
        return Command(Injection(whole.token_ids[:length], first_rows(whole.extents, length)))


async def probe_quality(
    door: ScoringDoor,
    rows: ProbeRows,
    header: Chunk,
    words: FactWords,
    frame_of: Callable[[str], Awaitable[Frame | None]],
    behind: EncodedBehind,
) -> Quality | None:
    """Encode the facts as the recipe does, and score every answer in four ways; None when a question has no frame.

    Args:
        behind: with "facts", half of the facts are encoded one behind the other, and the rest behind all of them.
    """
    lines = await _encode_lines(rows, header, words, behind)
    asked = []
    for number, one in enumerate(QUESTIONS):
        frame = await frame_of(one.question)
        if frame is None or frame.before != header.token_ids:
            return None
        asked.append(Asked(frame, _best_last(lines, number), words.tokenize(one.answer)))
    off, text = await _score(door, asked, False, None), await _score(door, asked, True, None)
    kv, tailed = [
        await _score(door, asked, True, [one.command(header, tail) for one in asked]) for tail in (0, TAIL_TOKENS)
    ]
    return quality_of(off, text, kv, tailed)


Scores = Sequence[Sequence[float]]
"""Log probability of each token of each question's answer."""


def quality_of(off: Scores, text: Scores, kv: Scores, kv_with_tail: Scores) -> Quality:
    """What the four ways of scoring the same answers say."""
    losses = (_loss(off), _loss(text), _loss(kv), _loss(kv_with_tail))
    tail = choose_tail(*losses)
    served = kv_with_tail if tail else kv
    gain = sum(sum(with_) > sum(without) for with_, without in zip(text, off, strict=True))
    lose = sum(sum(with_) < sum(without) for with_, without in zip(served, off, strict=True))
    return Quality(*losses, tail, gain, lose)


def choose_tail(off: float, text: float, kv: float, kv_with_tail: float) -> int:
    """TAIL_TOKENS when injected facts lose too much of what prefilled ones gain, and a tail brings it back in part."""
    gain = off - text
    if gain < LEAST_GAIN or kv - text <= LARGEST_LOSS * gain:
        return 0
    return TAIL_TOKENS if kv - kv_with_tail > LARGEST_LOSS / 2 * gain else 0


async def _encode_lines(
    rows: ProbeRows, header: Chunk, words: FactWords, behind: EncodedBehind
) -> tuple[Injection, ...]:
    """Questions' facts and distractions in turn, so that both kinds stand in the primer and behind it."""
    texts = [text for pair in zip([one.fact for one in QUESTIONS], DISTRACTIONS, strict=True) for text in pair]
    lines = [words.tokenize(words.line(text)) for text in texts]
    if behind != "facts":
        before = joined([header]) if behind == "header" else None
        return tuple([joined([await rows.capture(before, line)]) for line in lines])
    half = len(lines) // 2
    primer = await rows.capture(joined([header]), [token for line in lines[:half] for token in line])
    before = joined([header, primer])
    rest = await asyncio.gather(*(rows.capture(before, line) for line in lines[half:]))
    return (*_split(primer, [len(line) for line in lines[:half]]), *(joined([chunk]) for chunk in rest))


def _split(chunk: Chunk, lengths: Sequence[int]) -> list[Injection]:
    """The consecutive parts of one chunk."""
    parts, start = [], 0
    for length in lengths:
        rows = first_rows(chunk.extents, start + length)
        parts.append(Injection(chunk.token_ids[start : start + length], last_rows(rows, length)))
        start += length
    return parts


def _best_last(lines: Sequence[Injection], number: int) -> tuple[Injection, ...]:
    """The memory of one question: its own fact last, the others in an order that is not the one of encoding."""
    own = lines[2 * number]
    return (*[line for line in reversed(lines) if line is not own], own)


async def _score(
    door: ScoringDoor, asked: Sequence[Asked], with_memory: bool, commands: Sequence[Command] | None
) -> Scores:
    return await asyncio.gather(
        *(
            door.answer_logprobs(one.prompt(with_memory), one.answer, None if commands is None else commands[number])
            for number, one in enumerate(asked)
        )
    )


def _loss(scores: Scores) -> float:
    tokens = [logprob for answer in scores for logprob in answer]
    return -sum(tokens) / len(tokens)
