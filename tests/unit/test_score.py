"""The scorer before an engine that says what it was asked about, and rubbish at positions that it had in its cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.catalog import Catalog, ChunkKey
from inferscale_server.command import PARAMS_KEY, Command
from inferscale_server.edge.scoring import Ending, ScoreAsk, ScoreReply
from inferscale_server.engine.score import EngineScorer
from inferscale_server.errors import InvalidRequest, Unavailable
from inferscale_server.plan import Frame, MemoryLine, MemoryPlan, plan_memory
from inferscale_server.staging import Wanted
from inferscale_server.types import Mode

from .builders import ALICE, store
from .cold_facts import Cold, cold

FRAME = Frame(before=(1, 2, 3), after=(9, 9))
MODES: tuple[Any, ...] = ("off", "text", "kv")
BLOCK = 4
RUBBISH = -77
TOP = 2
ENDINGS = (Ending("", "xy"), Ending("ab", "xy"))


@dataclass
class Flat:
    """vLLM's flat logprobs: position p's own token is as likely as -p says, the likeliest are p and p + 1."""

    start_indices: list[int] = field(default_factory=list)
    end_indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class Words:
    """One answer."""

    text: str


@dataclass
class Output:
    """What the engine says about one request."""

    prompt_logprobs: Flat | None
    num_cached_tokens: int
    kv_transfer_params: dict[str, Any] | None
    outputs: Sequence[Words] = ()


@dataclass
class BlockEngine:
    """Keeps whole blocks by salt, as vLLM does. `short` tokens less than planned are injected."""

    short: int = 0
    short_when_greedy: int = 0
    asked: list[tuple[int, ...]] = field(default_factory=list)
    _blocks: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    async def forced(self, prompt_ids: Sequence[int], command: Command | None, salt: str, top: int | None) -> Output:
        """One request."""
        ids = tuple(prompt_ids)
        self.asked.append(ids)
        covered = 0
        if command is not None and command.injection is not None:
            covered = len(command.injection.token_ids) - self.short
        ends = range(BLOCK, len(ids), BLOCK)
        hit = max((end for end in ends if (salt, ids[:end]) in self._blocks), default=0)
        self._blocks |= {(salt, ids[:end]) for end in range(BLOCK, len(ids) + 1, BLOCK)}
        cached = max(covered, hit)
        flat = None if top is None else self._flat(ids, cached, top)
        return Output(flat, cached, None if command is None else {PARAMS_KEY: {"covered": covered}})

    async def greedy(self, prompt_ids: Sequence[int], command: Command | None, salt: str, max_tokens: int) -> Output:
        """Says what it was asked behind, and how much it may say."""
        self.short += self.short_when_greedy
        output = await self.forced(prompt_ids, command, salt, None)
        output.outputs = (Words(f"{max_tokens} tokens behind {tuple(prompt_ids)}"),)
        return output

    @staticmethod
    def _flat(ids: tuple[int, ...], cached: int, top: int) -> Flat:
        flat = Flat()
        for position, token in enumerate(ids):
            flat.start_indices.append(len(flat.token_ids))
            if position > 0:
                own = token if position > cached else RUBBISH
                flat.token_ids += [own, *range(position, position + top)]
                flat.logprobs += [-float(position), *[-0.5] * top]
            flat.end_indices.append(len(flat.token_ids))
        return flat


@dataclass
class Shelf:
    """What the scorer needs of recall: one fact in one chunk, or none."""

    catalog: Catalog
    encoded: bool = True
    facts: int = 1

    def tokenize(self, text: str) -> tuple[int, ...]:
        """A token a character."""
        return tuple(map(ord, text))

    async def find(self, *asked: object) -> object:
        """Nothing that anybody reads."""
        return None

    def lines(self, found: object, room_tokens: int) -> tuple[MemoryLine, ...]:
        """Nothing that `wanted` reads."""
        return ()

    def wanted(self, *asked: object) -> tuple[Wanted, ...]:
        """The fact."""
        return (Wanted(ChunkKey("fact", ALICE, "1"), (50, 51, 52)),)

    def plan(self, found: object, frame: Frame, mode: Mode, room_tokens: int) -> MemoryPlan:
        """Header and the fact."""
        chunk = store(self.catalog, "1", (50, 51, 52)) if self.encoded else None
        lines = [MemoryLine("1", "a fact", 1.0, (50, 51, 52), chunk)][: self.facts]
        return plan_memory(frame, lines, store(self.catalog, "header", frame.before, kind="header"), mode, None)


class Framing:
    """One frame for all questions."""

    async def question(self, model: str, text: str) -> Frame | None:
        """The frame."""
        return FRAME


class Warm:
    """Nothing is cold."""

    async def stage(self, wanted: Sequence[Wanted], patience_s: float | None = None) -> None:
        """Nothing to do."""


def scorer(engine: BlockEngine, **shelf: Any) -> EngineScorer:
    recall: Any = Shelf(Catalog(100, "f"), **shelf)
    return EngineScorer("m", recall, engine, Framing(), Warm(), max_model_len=100, max_top=20)


async def score(engine: BlockEngine, mode: Any, endings: Sequence[Ending] = ENDINGS, **shelf: Any) -> ScoreReply:
    return await scorer(engine, **shelf).score(ScoreAsk(ALICE, "Who?", tuple(endings), mode, 3, TOP))


@pytest.mark.parametrize("mode", ["text", "kv"])
async def test_each_token_of_the_answer_is_read_at_its_own_position(mode: str) -> None:
    reply = await score(BlockEngine(), mode)
    prompt = 3 + 3 + 2
    assert [[token.logprob for token in ending] for ending in reply.endings] == [
        [-prompt, -prompt - 1],
        [-prompt - 2, -prompt - 3],
    ]
    assert [token.token_id for token in reply.endings[0]] == [ord("x"), ord("y")]
    assert reply.endings[0][0].top_ids == (prompt, prompt + 1)


async def test_text_and_kv_have_the_same_prompt_and_off_has_none_of_the_facts() -> None:
    text, kv, off = [await score(BlockEngine(), mode) for mode in ("text", "kv", "off")]
    assert text.prompt_digest == kv.prompt_digest != off.prompt_digest
    assert (text.prompt_tokens, off.prompt_tokens) == (8, 5)
    assert (kv.injected_tokens, kv.memory_as_text, kv.memory_tokens, kv.facts) == (6, 0, 3, 1)
    assert (text.injected_tokens, text.memory_as_text) == (0, 3)
    assert (off.injected_tokens, off.memory_tokens, off.facts) == (0, 0, 0)


async def test_texts_prompt_is_computed_once_for_all_endings() -> None:
    engine = BlockEngine()
    await score(engine, "text")
    prompt = (1, 2, 3, 50, 51, 52, 9, 9)
    assert engine.asked[0] == prompt[:-1]
    assert sorted(asked[8:] for asked in engine.asked[1:]) == sorted([(120, 121), (97, 98, 120, 121)])


async def test_an_ending_whose_first_position_came_out_of_the_prefix_cache_is_asked_again() -> None:
    # Both endings share a block that reaches past where the second one's answer begins.
    engine = BlockEngine()
    reply = await score(engine, "text", [Ending("", "abcdefg"), Ending("abc", "defg")])
    assert len(engine.asked) == 4
    assert [token.logprob for token in reply.endings[1]] == [-11, -12, -13, -14]


async def test_less_injected_than_planned_is_an_error() -> None:
    with pytest.raises(Unavailable, match="only 5 of 6 planned tokens"):
        await score(BlockEngine(short=1), "kv")


async def test_memory_that_is_not_encoded_is_an_error_in_kv_and_none_in_text() -> None:
    engine = BlockEngine()
    with pytest.raises(Unavailable, match="nothing_encoded"):
        await score(engine, "kv", encoded=False)
    assert engine.asked == []
    assert (await score(engine, "text", encoded=False)).memory_as_text == 3


async def test_a_user_without_facts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no fact"):
        await score(BlockEngine(), "text", facts=0)


async def test_more_likeliest_tokens_than_the_engine_names_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 20"):
        await scorer(BlockEngine()).score(ScoreAsk(ALICE, "Who?", ENDINGS, "off", None, 21))


async def test_nothing_stays_pinned() -> None:
    recall: Any = Shelf(Catalog(100, "f"))
    engine = BlockEngine(short=1)
    with pytest.raises(Unavailable):
        await EngineScorer("m", recall, engine, Framing(), Warm(), 100, 20).score(
            ScoreAsk(ALICE, "?", ENDINGS, "kv", 3, TOP)
        )
    assert recall.catalog.pins == 0


async def test_each_mode_answers_behind_its_own_prompt_and_off_in_the_same_frame() -> None:
    replies = [await scorer(BlockEngine()).score(ScoreAsk(ALICE, "?", ENDINGS, mode, 3, TOP, 7)) for mode in MODES]
    with_facts, without = "7 tokens behind (1, 2, 3, 50, 51, 52, 9, 9)", "7 tokens behind (1, 2, 3, 9, 9)"
    assert [reply.answer for reply in replies] == [without, with_facts, with_facts]
    assert {reply.frame_digest for reply in replies} == {replies[0].prompt_digest}
    assert (await score(BlockEngine(), "kv")).answer is None


async def test_an_answer_behind_less_than_was_planned_is_an_error() -> None:
    engine = BlockEngine()
    score_one = scorer(engine).score(ScoreAsk(ALICE, "?", ENDINGS[:1], "kv", 3, TOP, 7))
    engine.short_when_greedy = 1
    with pytest.raises(Unavailable, match="only 5 of 6 planned tokens"):
        await score_one


@dataclass
class ColdShelf(Shelf):
    """Recall over real chunks that lie in a colder tier until they are staged."""

    cold: Cold | None = None

    def wanted(self, *asked: object) -> tuple[Wanted, ...]:
        """All facts."""
        assert self.cold is not None
        return tuple(self.cold.wanted)

    def plan(self, found: object, frame: Frame, mode: Mode, room_tokens: int) -> MemoryPlan:
        """Header and the facts, with the chunks that lie in the slab now."""
        lines = [MemoryLine(w.key.name, "", 1.0, w.token_ids, self.catalog.get(w.key)) for w in self.wanted(found)]
        header = store(self.catalog, "header", frame.before, kind="header")
        return plan_memory(frame, lines, header, mode, None)


async def test_what_lies_on_the_disk_is_staged_before_it_is_scored_however_short_a_chats_deadline(
    tmp_path: Path,
) -> None:
    here = await cold(folder=tmp_path, facts=3, deadline_s=1e-9)
    assert await here.stager.stage(here.wanted) == {} and here.warm() == []
    shelf: Any = ColdShelf(here.world.catalog, cold=here)
    scoring = EngineScorer("m", shelf, BlockEngine(), Framing(), here.stager, 500, 20)
    reply = await scoring.score(ScoreAsk(ALICE, "?", ENDINGS, "kv", 3, TOP))
    assert (reply.facts, reply.memory_as_text) == (3, 0) and len(here.warm()) == 3
