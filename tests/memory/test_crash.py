"""A writer killed at random points: what it acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, Owner
from tests.memory.fakes import FakeEmbedder

ROUNDS = 10
OWNER = Owner("local", "alice")

WRITER = """
import itertools, sys
from pathlib import Path
import numpy as np
from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, Owner
store = FactStore(Path(sys.argv[1]))
vector = np.full((1, 16), 0.25, np.float32)
for i in itertools.count():
    (outcome,) = store.add(Owner("local", "alice"), [FactDraft(f"round {sys.argv[2]} fact {i}")], vector)
    print(outcome.id, flush=True)
"""


def acknowledged_before_kill(path: Path, round_: int, kill_after: int) -> list[str]:
    """The ids that a writer printed, all of them, also those that were in the pipe when it was killed."""
    command = [sys.executable, "-c", WRITER, str(path), str(round_)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        ids = [writer.stdout.readline().strip() for _ in range(kill_after)]
        writer.kill()
        rest = writer.stdout.read()
    return ids + [line for line in rest.split("\n")[:-1] if line]  # a line without its end is not acknowledged


def test_every_acknowledged_fact_survives_a_kill_and_none_is_doubled(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    points = random.Random(20260701)
    acknowledged: list[list[str]] = []
    for round_ in range(ROUNDS):
        acknowledged.append(acknowledged_before_kill(path, round_, points.randint(1, 40)))
        store = FactStore(path)
        facts = store.oldest(OWNER, 100_000)
        store.close()
        stored = [fact.id for fact in facts]
        assert {fact_id for ids in acknowledged for fact_id in ids} <= set(stored)
        assert len(stored) == len(set(stored)) == len({fact.text for fact in facts})
        assert [fact.seq for fact in facts] == sorted({fact.seq for fact in facts})


def test_a_replay_after_a_kill_finds_the_acknowledged_ids(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    ids = acknowledged_before_kill(path, 0, 7)
    store = FactStore(path)
    drafts = [FactDraft(f"round 0 fact {i}") for i in range(len(ids))]
    replayed = store.add(OWNER, drafts, FakeEmbedder().embed([draft.text for draft in drafts]))
    store.close()
    assert [(outcome.id, outcome.status) for outcome in replayed] == [(fact_id, "duplicate") for fact_id in ids]
