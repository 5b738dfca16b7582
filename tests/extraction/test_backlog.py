"""Claims about turns that wait to be remembered."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

from inferscale_server.extraction.backlog import TurnBacklog, Waiting
from inferscale_server.extraction.build import backlog_of
from inferscale_server.filters import within
from inferscale_server.limits import MAX_TURNS_QUEUED, MAX_TURNS_QUEUED_PER_USER
from inferscale_server.memory import MemoryService
from inferscale_server.types import Owner, Scope
from tests.extraction.script import ALICE, extraction, facts, script, texts, turns, user

[TURN] = turns("I have a dog")


def waiting(owner: Owner = ALICE) -> Waiting:
    return Waiting(owner, TURN, 0)


async def nothing(one: Waiting) -> None:
    """Remembers nothing."""


async def test_a_queued_turn_is_remembered(memory: MemoryService) -> None:
    heard: Counter[str] = Counter()
    backlog = backlog_of(extraction(memory, script(facts("User has a dog."))), lambda result: heard.update([result]))
    assert backlog.put(waiting()) == "queued" and texts(memory) == []
    await backlog.drain()
    assert (texts(memory), len(backlog)) == (["User has a dog."], 0)
    assert heard == {"queued": 1, "done": 1}


async def test_one_user_cannot_fill_the_queue_of_all(memory: MemoryService) -> None:
    heard: Counter[str] = Counter()
    backlog = TurnBacklog(nothing, lambda result: heard.update([result]))
    put = [backlog.put(waiting()) for _ in range(MAX_TURNS_QUEUED_PER_USER + 3)]
    assert Counter(put) == heard == {"queued": MAX_TURNS_QUEUED_PER_USER, "queue_full": 3}
    assert backlog.put(waiting(Owner("local", "bob"))) == "queued"
    await backlog.drain()
    assert backlog.put(waiting()) == "queued"


async def test_the_queue_of_all_is_bounded() -> None:
    backlog = TurnBacklog(nothing, lambda result: None)
    owners = (Owner("local", f"user {number // 2}") for number in range(MAX_TURNS_QUEUED + 1))
    put = [backlog.put(waiting(owner)) for owner in owners]
    assert put[-1] == "queue_full" and Counter(put)["queued"] == len(backlog) == MAX_TURNS_QUEUED


async def test_a_turn_that_fails_does_not_keep_the_next_from_being_remembered() -> None:
    remembered: list[Owner] = []
    heard: list[str] = []

    async def remember(one: Waiting) -> None:
        if one.owner == ALICE:
            raise RuntimeError("secret words")
        remembered.append(one.owner)

    backlog, bob = TurnBacklog(remember, heard.append), Owner("local", "bob")
    backlog.put(waiting())
    backlog.put(waiting(bob))
    await backlog.drain()
    assert remembered == [bob] and heard == ["queued", "queued", "failed"]


async def test_turns_are_worked_on_as_they_come() -> None:
    done = asyncio.Event()

    async def remember(one: Waiting) -> None:
        done.set()

    backlog = TurnBacklog(remember, lambda result: None)
    task = asyncio.create_task(backlog.run())
    for _ in range(2):
        done.clear()
        backlog.put(waiting())
        await asyncio.wait_for(done.wait(), 10)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_S10_a_turn_that_waited_while_all_was_deleted_is_dropped(memory: MemoryService) -> None:
    heard: list[str] = []
    backlog = backlog_of(extraction(memory, script(facts("User has a dog."))), heard.append)
    backlog.put(Waiting(ALICE, TURN, memory.wipes(ALICE)))
    await memory.delete_owner(ALICE)
    await backlog.drain()
    assert texts(memory) == [] and heard == ["queued", "failed"]


async def test_S10_a_turn_that_waited_while_its_run_was_deleted_is_dropped_and_others_are_not(
    memory: MemoryService,
) -> None:
    heard: list[str] = []
    model = script(facts("User has a dog."), facts("User has a cat."))
    backlog = backlog_of(extraction(memory, model), heard.append)
    for text, run in (("I have a dog", "r1"), ("I have a cat", "r2")):
        [turn] = turns(user(text, run_id=run))
        backlog.put(Waiting(ALICE, turn, memory.wipes(ALICE)))
    where = within(None, Scope(run_id="r1"))
    assert where is not None
    await memory.delete_matching(ALICE, where)
    await backlog.drain()
    assert texts(memory) == ["User has a cat."] and heard == ["queued", "queued", "failed", "done"]
