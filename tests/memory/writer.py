"""A process that writes facts until it is killed, and says after each write that it is done."""

from __future__ import annotations

import itertools
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, Owner

OWNER = Owner("local", "alice")


def write_until_killed(path: Path, round_: int, told: Connection) -> None:
    """Add facts, change the fourth and delete the fifth of every five; tells `told` "verb id" after each commit."""
    store = FactStore(path)
    vector = np.full((1, 16), 0.25, np.float32)
    for i in itertools.count():
        (outcome,) = store.add(OWNER, [FactDraft(f"round {round_} fact {i}")], vector)
        fact_id = str(outcome.id)
        told.send_bytes(f"added {fact_id}".encode())
        if i % 5 == 3:
            fact = store.get_many(OWNER, [fact_id])[fact_id]
            store.update(fact, replace(fact, text=fact.text + " changed"), vector, stale=True)
            told.send_bytes(f"changed {fact_id}".encode())
        if i % 5 == 4:
            store.delete(OWNER, fact_id)
            told.send_bytes(f"deleted {fact_id}".encode())
