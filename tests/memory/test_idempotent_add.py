"""A repeated write: answered with the first one's outcome, also after a restart, and never stored twice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from inferscale_server.errors import Conflict, StorageFull
from inferscale_server.facts import FactStore
from inferscale_server.memory import MemoryService
from inferscale_server.outcomes import KEPT_S
from inferscale_server.types import AddOutcome, FactDraft, IdempotencyKey, Owner
from tests.memory.fakes import Clock, FakeEmbedder, started

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")
KEY = IdempotencyKey("key-1", "digest-1")
DRAFTS = [FactDraft("one"), FactDraft("two"), FactDraft("one"), FactDraft("late", expires_at=1.0)]


def kept_rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        return int(other.execute("SELECT count(*) FROM idempotency").fetchone()[0])


async def test_a_repeat_returns_the_first_outcomes_and_neither_embeds_nor_stores(
    memory: MemoryService, embedder: FakeEmbedder
) -> None:
    first = await memory.add(ALICE, DRAFTS, KEY)
    assert [outcome.status for outcome in first] == ["stored", "stored", "duplicate", "failed"]
    calls = len(embedder.calls)
    assert await memory.add(ALICE, DRAFTS, KEY) == first
    assert len(embedder.calls) == calls and memory.count(ALICE) == 2


async def test_a_repeat_after_a_restart_is_answered_with_the_same_ids(
    memory: MemoryService, path: Path, clock: Clock
) -> None:
    first = await memory.add(ALICE, DRAFTS, KEY)
    await memory.aclose()
    again = await started(FactStore(path, clock=clock))
    assert await again.add(ALICE, DRAFTS, KEY) == first
    await again.aclose()


async def test_without_a_key_or_with_another_a_repeat_is_a_duplicate(memory: MemoryService) -> None:
    (first,) = await memory.add(ALICE, [FactDraft("one")], KEY)
    for key in (None, IdempotencyKey("key-2", "digest-1")):
        (again,) = await memory.add(ALICE, [FactDraft("one")], key)
        assert again == AddOutcome(first.id, "one", "duplicate", "already stored; time and metadata unchanged")


async def test_a_key_with_another_body_is_a_conflict_and_stores_nothing(memory: MemoryService) -> None:
    await memory.add(ALICE, [FactDraft("one")], KEY)
    with pytest.raises(Conflict) as caught:
        await memory.add(ALICE, [FactDraft("two")], IdempotencyKey(KEY.key, "digest-2"))
    assert (caught.value.status, caught.value.code) == (409, "idempotency_mismatch")
    assert memory.count(ALICE) == 1


async def test_another_owners_key_of_the_same_name_is_another_key(memory: MemoryService) -> None:
    (hers,) = await memory.add(ALICE, [FactDraft("one")], KEY)
    (his,) = await memory.add(BOB, [FactDraft("one")], IdempotencyKey(KEY.key, "digest-2"))
    assert his.status == "stored" and his.id != hers.id


async def test_S10_a_late_repeat_does_not_bring_a_deleted_fact_back(memory: MemoryService) -> None:
    (first,) = await memory.add(ALICE, [FactDraft("one")], KEY)
    await memory.delete(ALICE, str(first.id))
    assert await memory.add(ALICE, [FactDraft("one")], KEY) == (first,)
    assert memory.count(ALICE) == 0 and (await memory.page(ALICE)).facts == ()


async def test_S10_a_late_repeat_does_not_bring_a_deleted_owner_back(memory: MemoryService, path: Path) -> None:
    await memory.add(ALICE, [FactDraft("one")], KEY)
    await memory.add(BOB, [FactDraft("one")], KEY)
    await memory.delete_owner(ALICE)
    for body_digest in (KEY.body_digest, "digest-2"):
        with pytest.raises(Conflict) as caught:
            await memory.add(ALICE, [FactDraft("one")], IdempotencyKey(KEY.key, body_digest))
        assert caught.value.code == "memories_deleted"
    assert memory.count(ALICE) == 0 and memory.count(BOB) == 1
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT body_digest, outcomes FROM idempotency WHERE outcomes = 'null'").fetchall()
    assert rows == [("", "null")]  # that the key was used, and nothing of what it stored
    (again,) = await memory.add(ALICE, [FactDraft("one")], IdempotencyKey("another", "digest-2"))
    assert again.status == "stored"


async def test_a_key_is_kept_a_day_and_swept_then(memory: MemoryService, clock: Clock, path: Path) -> None:
    await memory.add(ALICE, [FactDraft("one")], KEY)
    clock.now += KEPT_S - 1
    await memory.maintain()
    assert (await memory.add(ALICE, [FactDraft("one")], KEY))[0].status == "stored"
    clock.now += 1
    (late,) = await memory.add(ALICE, [FactDraft("one")], IdempotencyKey(KEY.key, "digest-2"))
    assert late.status == "duplicate" and kept_rows(path) == 1
    clock.now += KEPT_S
    await memory.maintain()
    assert kept_rows(path) == 0


async def test_a_write_that_failed_is_not_remembered_as_done(path: Path) -> None:
    memory = await started(FactStore(path, max_facts_per_owner=1))
    with pytest.raises(StorageFull):
        await memory.add(ALICE, [FactDraft("one"), FactDraft("two")], KEY)
    await memory.add(ALICE, [FactDraft("one")])
    assert kept_rows(path) == 0
    await memory.aclose()


async def test_S9_what_is_kept_of_a_write_holds_no_text(memory: MemoryService, path: Path) -> None:
    await memory.add(ALICE, [FactDraft("my code is canary-77")], KEY)
    with closing(sqlite3.connect(path)) as other:
        rows = other.execute("SELECT * FROM idempotency").fetchall()
    assert len(rows) == 1 and "canary-77" not in repr(rows) and "alice" not in repr(rows)
