"""Claims about the turn of a chat that is to be remembered after its answer, however that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from inferscale_server.edge.wire import ChatMemory
from inferscale_server.engine.heard import Heard, heard
from inferscale_server.extraction.build import backlog_of
from inferscale_server.extraction.extraction import Extraction
from inferscale_server.extraction.extractor import VerbatimExtractor
from inferscale_server.extraction.judge import RuleJudge
from inferscale_server.extraction.turn import Sources
from inferscale_server.limits import MAX_FACT_CHARS
from inferscale_server.memory import MemoryService
from tests.extraction.script import ALICE, texts, user

RECALLED = ("My dog is called Rex",)


def brain_of(memory: MemoryService, sources: Sources) -> Any:
    """As much of a Brain as a chat's turn needs."""
    extraction = Extraction(memory, VerbatimExtractor(), RuleJudge(), sources)
    return SimpleNamespace(memory=memory, extraction=extraction, backlog=backlog_of(extraction, lambda result: None))


def chat(brain: Any, text: str, remember: bool = True) -> Heard:
    return heard(brain, ChatMemory(ALICE, remember=remember), [user(text)])


@pytest.mark.parametrize("sources", ["user", "both"])
async def test_a_long_answer_does_not_lose_the_turn(memory: MemoryService, sources: Sources) -> None:
    brain = brain_of(memory, sources)
    turn = chat(brain, "I have a dog")
    turn.answer("Dogs need walks. " * 530)
    assert turn.keep(brain, ()) == "queued"
    await brain.backlog.drain()
    assert texts(memory)[0] == "I have a dog" and len(texts(memory)) == (1 if sources == "user" else 2)
    assert all(len(text) <= MAX_FACT_CHARS for text in texts(memory))


async def test_the_turn_of_an_answer_that_broke_off_is_kept_without_the_answer(memory: MemoryService) -> None:
    brain = brain_of(memory, "both")
    turn = chat(brain, "I have a dog")
    turn.event('data: {"choices": [{"index": 0, "delta": {"content": "Dogs need wa"}}]}\n\n')
    turn.keep_unanswered(brain, RECALLED)
    await brain.backlog.drain()
    assert texts(memory) == ["I have a dog"]


async def test_a_turn_is_kept_once_and_only_when_asked_for(memory: MemoryService) -> None:
    brain = brain_of(memory, "user")
    turn = chat(brain, "I have a dog")
    assert turn.keep(brain, ()) == "queued"
    turn.keep_unanswered(brain, ())
    chat(brain, "I have a cat", remember=False).keep_unanswered(brain, ())
    assert len(brain.backlog) == 1


async def test_S10_an_answer_that_repeats_a_recalled_memory_is_not_learnt(memory: MemoryService) -> None:
    brain = brain_of(memory, "both")
    turn = chat(brain, "Tell me about him")
    turn.answer("Your dog is called Rex.")
    turn.keep(brain, RECALLED)
    await brain.backlog.drain()
    assert texts(memory) == ["Tell me about him"]
