"""An update changes exactly the fields that it names, who said it and where among them, and the history knows."""

from __future__ import annotations

import pytest

from inferscale_server.errors import Conflict, InvalidRequest
from inferscale_server.memory import MemoryService
from inferscale_server.remember import parse_change
from inferscale_server.types import FactChange, FactDraft, Owner
from tests.memory.fakes import RecordingSink

ALICE = Owner("local", "alice")
SAID = FactDraft("I like tea", "Ann", 1_700_000_000.0, "s1", {"a": 1})


async def stored(memory: MemoryService, draft: FactDraft = SAID) -> str:
    [outcome] = await memory.add(ALICE, [draft])
    return str(outcome.id)


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"speaker": "Bob"}, {"speaker": "Bob"}),
        ({"speaker": None}, {"speaker": None}),
        ({"session_id": "s2"}, {"session_id": "s2"}),
        ({"session_id": None}, {"session_id": None}),
        ({"timestamp": None}, {"occurred_at": None}),
    ],
)
async def test_what_an_update_does_not_name_stays(
    memory: MemoryService, fields: dict[str, object], changed: dict[str, object]
) -> None:
    fact_id = await stored(memory)
    before = await memory.get(ALICE, fact_id)
    after = await memory.update(ALICE, fact_id, parse_change(fields))
    expected = {"text": "I like tea", "speaker": "Ann", "occurred_at": SAID.occurred_at, "session_id": "s1"} | changed
    assert {name: getattr(after, name) for name in expected} == expected
    assert (after.metadata, after.created_at) == ({"a": 1}, before.created_at)


async def test_the_history_holds_who_said_it_when_and_where(memory: MemoryService) -> None:
    fact_id = await stored(memory)
    await memory.update(ALICE, fact_id, FactChange(speaker="Bob", session_id=None))
    told = [(event.speaker, event.occurred_at, event.session_id) for event in await memory.history(ALICE, fact_id)]
    assert told == [("Ann", SAID.occurred_at, "s1"), ("Bob", SAID.occurred_at, None)]
    await memory.delete(ALICE, fact_id)
    gone = await memory.history(ALICE, fact_id)
    assert {(event.text, event.speaker, event.occurred_at, event.session_id) for event in gone} == {(None,) * 4}


async def test_a_new_speaker_makes_the_kv_stale_and_a_new_session_does_not(
    memory: MemoryService, sink: RecordingSink
) -> None:
    fact_id = await stored(memory)
    sink.heard.clear()
    await memory.update(ALICE, fact_id, FactChange(session_id="s2"))
    assert sink.heard == [] and memory.epoch(ALICE) == 0
    await memory.update(ALICE, fact_id, FactChange(speaker="Bob"))
    assert [what for what, *_ in sink.heard] == ["forgotten", "added"] and memory.epoch(ALICE) == 1


async def test_a_speaker_that_makes_a_duplicate_is_a_conflict(memory: MemoryService) -> None:
    await stored(memory, FactDraft("I like tea", "Bob"))
    fact_id = await stored(memory)
    with pytest.raises(Conflict):
        await memory.update(ALICE, fact_id, FactChange(speaker="Bob"))
    assert (await memory.get(ALICE, fact_id)).speaker == "Ann"


@pytest.mark.parametrize("fields", [{"speaker": ""}, {"speaker": 5}, {"session_id": " s"}, {"session_id": ["s"]}])
def test_a_bad_name_is_refused_by_its_field(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_change(fields)
    assert caught.value.param == next(iter(fields))
