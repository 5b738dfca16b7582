"""R1: a writer killed at random points. What it acknowledged is there, nothing is there twice, the store opens soon.

And S10: what was deleted before a crash stays deleted.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from inferscale_server.facts import FactStore
from inferscale_server.types import Fact, FactDraft
from tests.memory.fakes import FakeEmbedder
from tests.memory.writer import OWNER, write_until_killed

SEED = 20260701
MOST_OPENING_S = 10.0
"""Five times the promise."""

# Writers are forked from a process that has imported everything already: most of a round's time would be imports.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.memory.writer"])


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the writer said was done, in order."""

    lines: tuple[str, ...]

    def of(self, verb: str) -> set[str]:
        """The ids that this was done to."""
        return {line.partition(" ")[2] for line in self.lines if line.startswith(verb)}


def acknowledged_before_kill(path: Path, round_: int, kill_after: int) -> Acknowledged:
    """What a writer told, all of it, also what was in the pipe when it was killed."""
    mine, its = FORKED.Pipe(duplex=False)
    writer = FORKED.Process(target=write_until_killed, args=(path, round_, its))
    writer.start()
    its.close()
    lines = [mine.recv_bytes().decode() for _ in range(kill_after)]
    writer.kill()
    with suppress(EOFError, OSError):  # OSError: a message that was cut off is not acknowledged
        while True:
            lines.append(mine.recv_bytes().decode())
    writer.join()
    return Acknowledged(tuple(lines))


def check_store(facts: tuple[Fact, ...], rounds: list[Acknowledged]) -> None:
    """Every round's writes are there, whatever was killed since."""
    stored = {fact.id: fact for fact in facts}
    assert len(stored) == len(facts) == len({fact.text for fact in facts})
    assert [fact.seq for fact in facts] == sorted({fact.seq for fact in facts})
    for said in rounds:
        last = {said.lines[-1].partition(" ")[2]}  # its next step may or may not have been committed
        assert said.of("added") - said.of("deleted") - last <= set(stored)
        assert said.of("deleted").isdisjoint(stored)
        changed = said.of("changed") - said.of("deleted")
        assert all(stored[fact_id].text.endswith(" changed") for fact_id in changed)


@pytest.mark.parametrize("rounds", [10, pytest.param(200, marks=pytest.mark.long)])
def test_R1_every_acknowledged_write_survives_a_kill_and_none_is_doubled(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / "facts.sqlite3"
    points = random.Random(SEED)
    opening_s: list[float] = []
    rounds_said: list[Acknowledged] = []
    for round_ in range(rounds):
        said = acknowledged_before_kill(path, round_, points.randint(1, 40))
        began = time.perf_counter()
        store = FactStore(path)
        opening_s.append(time.perf_counter() - began)
        rounds_said.append(said)
        facts = store.oldest(OWNER, 10**6)
        store.close()
        check_store(facts, rounds_said)
    writes = sum(len(said.lines) for said in rounds_said)
    print(f"R1: {rounds} kills, {writes} acknowledged writes, 0 lost, opened in at most {max(opening_s):.3f} s")
    assert max(opening_s) < MOST_OPENING_S


def test_R1_a_replay_after_a_kill_finds_the_acknowledged_ids(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    said = acknowledged_before_kill(path, 0, 3)
    ids = [line.partition(" ")[2] for line in said.lines if line.startswith("added")][:3]
    store = FactStore(path)
    drafts = [FactDraft(f"round 0 fact {i}") for i in range(len(ids))]
    replayed = store.add(OWNER, drafts, FakeEmbedder().embed([draft.text for draft in drafts]))
    store.close()
    assert [(outcome.id, outcome.status) for outcome in replayed] == [(fact_id, "duplicate") for fact_id in ids]


def test_S10_what_was_deleted_before_a_crash_stays_gone(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    said = acknowledged_before_kill(path, 0, 14)
    for _ in range(2):
        store = FactStore(path)
        assert said.of("deleted") and said.of("deleted").isdisjoint(store.get_many(OWNER, said.of("added")))
        assert store.epoch(OWNER) >= len(said.of("deleted")) + len(said.of("changed"))
        for fact_id in said.of("deleted"):
            assert [event.text for event in store.history(OWNER, fact_id)] == [None, None]
        store.close()
