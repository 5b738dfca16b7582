"""Facts that are in memory cost the garbage collector nothing: it does not look at them."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from inferscale_server import heap
from inferscale_server.memory import MemoryService
from inferscale_server.types import FactDraft, Owner

ALICE = Owner("local", "alice")
FACTS = 20_000


@dataclass
class Thing:
    """Something with a container in it, as a fact has its metadata."""

    name: str
    metadata: dict[str, list[int]] = field(default_factory=dict)


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Whatever other tests have frozen, and what these do, is in sight again afterwards."""
    gc.unfreeze()
    yield
    gc.unfreeze()


def full_collection_ms() -> float:
    started = time.perf_counter()
    gc.collect()
    return 1e3 * (time.perf_counter() - started)


async def test_a_large_import_is_taken_out_of_the_collectors_sight(
    memory: MemoryService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "KEEP_EVERY", 100)
    for start in range(0, 150, 50):
        assert gc.get_freeze_count() == 0
        await memory.add(ALICE, [FactDraft(f"fact {number}") for number in range(start, start + 50)])
        if start == 50:
            break
    assert gc.get_freeze_count() > 100
    frozen = gc.get_freeze_count()
    await memory.add(ALICE, [FactDraft("one more")])
    assert gc.get_freeze_count() <= frozen


async def test_what_is_kept_is_freed_all_the_same(memory: MemoryService) -> None:
    await memory.add(ALICE, [FactDraft(f"fact {number}") for number in range(50)])
    heap.keep()
    frozen = gc.get_freeze_count()
    assert await memory.delete_owner(ALICE) == 50
    assert gc.get_freeze_count() <= frozen - 50


def test_a_full_collection_does_not_look_at_what_is_kept() -> None:
    things = [Thing(f"thing {number}", {"a": [number]}) for number in range(FACTS)]
    before = len(gc.get_objects())
    seen = full_collection_ms()
    heap.keep_all()
    print(f"{len(things)} facts: a full collection takes {seen:.0f} ms, and {full_collection_ms():.1f} ms once kept")
    assert len(gc.get_objects()) < before - 2 * FACTS
