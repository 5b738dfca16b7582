"""Claims about mem0's pipeline as an extractor, with mem0 itself around a scripted model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from inferscale_server.extraction.extractor import ExtractionFailed
from inferscale_server.extraction.mem0_pipeline import Mem0Extractor
from tests.extraction.script import SAID_AT, Script, assistant, script, turns, user

pytestmark = pytest.mark.skipif(find_spec("mem0") is None, reason="mem0 is an extra")


def answer(*texts: str) -> str:
    return json.dumps({"memory": [{"id": str(at), "text": text} for at, text in enumerate(texts)]})


def extractor(folder: Path, model: Script) -> Mem0Extractor:
    return Mem0Extractor(model.write, folder, lambda: SAID_AT)


async def test_what_mem0_extracts_is_checked_and_dated_like_our_own(tmp_path: Path) -> None:
    model = script(answer("User has a dog called Rex", "User went hiking yesterday", "User likes tea"))
    [turn] = turns("My dog is called Rex. I went hiking yesterday.")
    found = await extractor(tmp_path, model).extract(turn)
    assert [fact.text for fact in found.facts] == [
        "User has a dog called Rex",
        "User went hiking yesterday (2023-05-07)",
    ]
    assert len(found.lost) == 1 and "not in the words" in found.lost[0]
    [asked] = model.asked
    assert "My dog is called Rex" in asked.user and len(asked.system) > 10_000


async def test_nothing_to_remember_is_an_answer(tmp_path: Path) -> None:
    [turn] = turns("What is a dog?")
    assert (await extractor(tmp_path, script(answer())).extract(turn)).facts == ()


@pytest.mark.parametrize("broken", ["", "I cannot do that.", None])
async def test_a_broken_answer_is_asked_for_again_and_then_a_failure(tmp_path: Path, broken: str | None) -> None:
    [turn] = turns("I have a dog")
    good = await extractor(tmp_path, script(broken, answer("User has a dog"))).extract(turn)
    assert [fact.text for fact in good.facts] == ["User has a dog"]
    with pytest.raises(ExtractionFailed, match=r"empty|no JSON|away"):
        await extractor(tmp_path, script(broken, broken)).extract(turn)


def attributed(**texts: str) -> str:
    """mem0's answer in which each text has a speaker."""
    memories = [{"id": str(at), "text": text, "attributed_to": who} for at, (who, text) in enumerate(texts.items())]
    return json.dumps({"memory": memories})


async def test_mem0_tells_who_said_it(tmp_path: Path) -> None:
    model = script(attributed(assistant="Rex needs long walks", user="User has a dog called Rex"))
    said = (user("I have a dog called Rex", name="Ann"), assistant("Rex needs long walks."))
    [turn] = turns(*said, sources="both")
    found = await extractor(tmp_path, model).extract(turn)
    assert {(fact.text, fact.speaker) for fact in found.facts} == {
        ("Rex needs long walks", "assistant"),
        ("User has a dog called Rex", "Ann"),
    }


async def test_what_is_whole_of_a_cut_answer_of_mem0_is_kept_and_the_cut_is_reported(tmp_path: Path) -> None:
    cut = answer("User has a dog", "User has a cat")[:-12]
    [turn] = turns("I have a dog and a cat")
    found = await extractor(tmp_path, script(cut, cut)).extract(turn)
    assert [fact.text for fact in found.facts] == ["User has a dog"]
    assert len(found.lost) == 1 and "cut short" in found.lost[0]


async def test_mem0_hears_when_it_was_said(tmp_path: Path) -> None:
    model = script(answer("User moved to Rome on May 7, 2023"))
    [turn] = turns("I moved to Rome yesterday")
    found = await extractor(tmp_path, model).extract(turn)
    assert [fact.text for fact in found.facts] == ["User moved to Rome on May 7, 2023"]
    assert "Said on Monday, 2023-05-08." in model.asked[0].user
