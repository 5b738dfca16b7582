"""How much one owner may have: facts, and bytes of texts and metadata, counted exactly."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from inferscale_server import outcomes
from inferscale_server.database import MIGRATIONS
from inferscale_server.errors import StorageFull
from inferscale_server.fact_rows import bytes_of
from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, IdempotencyKey, Owner, UserCount
from inferscale_server.verify import verify
from tests.memory.fakes import Clock, FakeEmbedder

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[FactStore]:
    opened = FactStore(path, max_bytes_per_owner=1_000)
    yield opened
    opened.close()


def add(store: FactStore, owner: Owner, *drafts: FactDraft) -> list[str]:
    added = store.add(owner, drafts, FakeEmbedder().embed([draft.text for draft in drafts]))
    return [str(outcome.id) for outcome in added]


def counted(path: Path) -> dict[tuple[str, str], tuple[int, int]]:
    with closing(sqlite3.connect(path)) as other:
        return {(tenant, user): (facts, size) for tenant, user, facts, size in other.execute("SELECT * FROM usage")}


def test_over_the_bytes_nothing_is_stored_and_others_can_go_on(store: FactStore) -> None:
    add(store, ALICE, FactDraft("x" * 500))
    for too_much in (FactDraft("ä" * 300), FactDraft("short", metadata={"long": "y" * 500})):
        with pytest.raises(StorageFull) as caught:
            add(store, ALICE, FactDraft("small"), too_much)
        assert caught.value.status == 507
    assert [fact.text for fact in store.oldest(ALICE, 10)] == ["x" * 500]
    add(store, ALICE, FactDraft("small"))
    add(store, BOB, FactDraft("ä" * 300))


def test_a_delete_makes_room(store: FactStore) -> None:
    (fact_id,) = add(store, ALICE, FactDraft("x" * 900))
    store.delete(ALICE, fact_id)
    add(store, ALICE, FactDraft("y" * 900))


def test_a_duplicate_is_not_refused_by_a_full_quota(path: Path) -> None:
    store = FactStore(path, max_facts_per_owner=1)
    (fact_id,) = add(store, ALICE, FactDraft("one"))
    assert add(store, ALICE, FactDraft("one")) == [fact_id]
    store.close()


def test_what_is_counted_is_what_is_there_whatever_was_done(path: Path) -> None:
    store = FactStore(path)
    choices = random.Random(7)
    for i in range(120):
        owner = choices.choice((ALICE, BOB))
        facts = store.oldest(owner, 1_000)
        what = choices.random()
        if what < 0.5 or not facts:
            add(store, owner, FactDraft(f"{i} " + "né" * choices.randrange(9), metadata={"ключ": "é" * (i % 5)}))
        elif what < 0.75:
            old = choices.choice(facts)
            store.update(old, replace(old, text=f"{i} 👩‍👩‍👧", metadata={"n": i}), None, stale=True)
        elif what < 0.97:
            store.delete(owner, choices.choice(facts).id)
        else:
            store.delete_owner(owner)
    there = {owner: store.oldest(owner, 1_000) for owner in store.owners()}
    assert counted(path) == {
        (owner.tenant, owner.user): (len(facts), sum(bytes_of(fact) for fact in facts))
        for owner, facts in there.items()
    }
    store.close()


def test_a_store_of_the_first_schema_is_brought_up_to_this_one(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute("PRAGMA user_version = 1")
        old.execute(
            "INSERT INTO facts (id, tenant, user, sameness, text, metadata, created_at, embedding) "
            "VALUES ('a', 'local', 'alice', x'00', 'tëa', '{\"k\": 1}', 5.0, zeroblob(64))"
        )
    store = FactStore(path)
    (fact,) = store.oldest(ALICE, 10)
    assert (fact.text, fact.metadata, fact.created_at) == ("tëa", {"k": 1}, 5.0)
    assert (fact.updated_at, fact.expires_at) == (5.0, None)
    assert store.users("local", 10).users == (UserCount("alice", 1),)
    assert counted(path) == {("local", "alice"): (1, bytes_of(fact))}
    assert [event.text for event in store.history(ALICE, "a")] == ["tëa"]
    assert store.delete(ALICE, "a") and counted(path) == {}
    store.close()


def rewrite(store: FactStore, fact_id: str, text: str) -> None:
    fact = store.get(ALICE, fact_id)
    assert fact is not None
    new = replace(fact, text=text, updated_at=fact.updated_at + 1)
    assert store.update(fact, new, FakeEmbedder().embed([text])[0], stale=True)


def test_history_is_no_way_around_the_quota_and_keeps_the_newest_words(store: FactStore, path: Path) -> None:
    store.claim_embedder("fake-16", 16)
    ids = add(store, ALICE, FactDraft("zero"), FactDraft("one"))
    for number in range(20):
        for fact_id in ids:
            rewrite(store, fact_id, f"{fact_id[:4]} {number:02} " + "x" * 100)
    events = [event for fact_id in ids for event in store.history(ALICE, fact_id)]
    assert len(events) == 42
    assert 500 < sum(len(event.text or "") for event in events) < 1_000
    assert all(store.history(ALICE, fact_id)[-1].text for fact_id in ids)
    assert verify(path).broken == ()
    store.delete_owner(ALICE)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT count(*) FROM history_usage").fetchone() == (0,)


def test_only_the_newest_idempotency_keys_are_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MAX_IDEMPOTENCY_KEYS", 3)
    clock = Clock()
    with closing(FactStore(path, clock=clock)) as store:
        for number in range(6):
            clock.now += 1
            key = IdempotencyKey(f"k{number}", "digest")
            store.add(ALICE, [FactDraft(f"fact {number}")], FakeEmbedder().embed(["x"]), key)
        kept = [store.earlier(ALICE, IdempotencyKey(f"k{n}", "digest"), ()) is not None for n in range(6)]
    assert kept == [False] * 3 + [True] * 3
