"""R2 and R4 for facts: a disk that fails or is full at any call. The state is the one before or the one after."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from inferscale_server.errors import RequestError, StorageFull, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, IdempotencyKey, Owner
from tests.memory.fakes import Clock, FakeEmbedder, started
from tests.memory.test_database import FaultyConnection

ALICE = Owner("local", "alice")
KEY = IdempotencyKey("key", "digest")
MOST_CALLS = 60
ERRORS = [
    (sqlite3.SQLITE_IOERR_WRITE, Unavailable),
    (sqlite3.SQLITE_IOERR_FSYNC, Unavailable),
    (sqlite3.SQLITE_FULL, StorageFull),
]

Write = Callable[[FactStore], object]


def drafts(*texts: str, expires_at: float | None = None) -> list[FactDraft]:
    return [FactDraft(text, metadata={"said": text}, expires_at=expires_at) for text in texts]


def add(store: FactStore, what: list[FactDraft], key: IdempotencyKey | None = None) -> None:
    store.add(ALICE, what, FakeEmbedder().embed([draft.text for draft in what]), key)


def update(store: FactStore) -> None:
    old = store.oldest(ALICE, 1)[0]
    store.update(old, replace(old, text="changed", metadata={}), FakeEmbedder().embed(["changed"])[0], stale=True)


WRITES: dict[str, Write] = {
    "add": lambda store: add(store, drafts("three", "four"), KEY),
    "update": update,
    "delete": lambda store: store.delete(ALICE, store.oldest(ALICE, 1)[0].id),
    "delete_owner": lambda store: store.delete_owner(ALICE),
    "expire": lambda store: store.expire(store.now() + 60),
}


def state(path: Path) -> dict[str, list[object]]:
    """All that is committed, but for ids and times, which differ from try to try."""
    queries = {
        "facts": "SELECT seq, text, metadata, expires_at, hex(embedding) FROM facts ORDER BY seq",
        "history": "SELECT event, text, metadata FROM history ORDER BY number",
        "idempotency": "SELECT key, body_digest FROM idempotency",
        "epochs": "SELECT * FROM epochs",
        "usage": "SELECT * FROM usage",
    }
    with closing(sqlite3.connect(path)) as other:
        return {name: other.execute(query).fetchall() for name, query in queries.items()}


def prepared(path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection) -> FactStore:
    store = FactStore(path, connect=partial(sqlite3.connect, factory=factory), clock=Clock())
    add(store, drafts("one"))
    update_first = store.oldest(ALICE, 1)[0]
    store.update(update_first, replace(update_first, text="one again"), None, stale=False)
    add(store, drafts("two", expires_at=store.now() + 30))
    return store


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("code", "raised"), ERRORS)
@pytest.mark.parametrize("name", WRITES)
def test_R2_a_write_that_fails_at_any_call_leaves_the_state_before_or_after(
    tmp_path: Path, name: str, code: int, raised: type[RequestError], after: bool
) -> None:
    clean = prepared(tmp_path / "clean.sqlite3")
    before = state(clean_path := tmp_path / "clean.sqlite3")
    WRITES[name](clean)
    done = state(clean_path)
    clean.close()
    assert before != done
    failures = 0
    for call in range(1, MOST_CALLS):
        path = tmp_path / f"{call}.sqlite3"
        fault = type("Connection", (FaultyConnection,), {})
        store = prepared(path, fault)
        assert state(path) == before
        fault.left, fault.after, fault.code = call, after, code
        try:
            WRITES[name](store)
        except RequestError as error:
            failures += 1
            assert type(error) is raised
        fired, fault.left = fault.left <= 0, -1
        found = state(path)
        assert found in (before, done), call
        if found == before:
            WRITES[name](store)
            assert state(path) == done, call
        store.close()
        if not fired:
            break
    assert failures == call - 1 >= 4
    print(f"R2 {name}: failed at each of {failures} calls, never between")


def limited(store: FactStore, more_pages: int) -> None:
    """A disk with room for so many pages more: SQLite itself then says "database or disk is full"."""
    with store._database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + more_pages}")


@pytest.mark.parametrize("more_pages", [0, 1, 2, 5])
def test_R4_a_full_disk_is_a_507_and_loses_nothing_older(tmp_path: Path, more_pages: int) -> None:
    path = tmp_path / "facts.sqlite3"
    store = prepared(path)
    limited(store, more_pages)
    before = state(path)
    with pytest.raises(StorageFull) as caught:
        add(store, drafts(*(f"{i} " + "x" * 4_000 for i in range(20))), KEY)
    assert caught.value.status == 507
    assert state(path) == before
    store.delete_owner(ALICE)
    add(store, drafts("room again"))
    store.close()
    again = FactStore(path)
    assert [fact.text for fact in again.oldest(ALICE, 10)] == ["room again"]
    again.close()


async def test_R4_a_full_disk_leaves_the_service_serving_what_it_has(tmp_path: Path) -> None:
    store = FactStore(tmp_path / "facts.sqlite3")
    memory = await started(store)
    await memory.add(ALICE, drafts("one", "two"))
    limited(store, 2)
    with pytest.raises(StorageFull):
        await memory.add(ALICE, drafts(*(f"{i} " + "x" * 4_000 for i in range(20))), KEY)
    assert {hit.fact.text for hit in await memory.search(ALICE, "one", 50)} == {"one", "two"}
    assert memory.count(ALICE) == 2 and len((await memory.page(ALICE)).facts) == 2
    await memory.delete_owner(ALICE)
    assert (await memory.add(ALICE, drafts("three"), KEY))[0].status == "stored"
    await memory.aclose()
