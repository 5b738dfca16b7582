from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inferscale_server.errors import ConfigError, InvalidRequest, StorageFull
from inferscale_server.facts import FactStore
from inferscale_server.types import AddOutcome, FactDraft, Owner
from tests.memory.fakes import FakeEmbedder

ALICE = Owner("local", "alice")
BOB = Owner("local", "bob")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[FactStore]:
    opened = FactStore(path)
    yield opened
    opened.close()


def add(store: FactStore, owner: Owner, *texts: str) -> tuple[AddOutcome, ...]:
    return store.add(owner, [FactDraft(text) for text in texts], FakeEmbedder().embed(texts))


def only_id(outcomes: tuple[AddOutcome, ...]) -> str:
    (outcome,) = outcomes
    assert outcome.id is not None
    return outcome.id


def test_a_stored_fact_comes_back_as_it_was_written(store: FactStore) -> None:
    draft = FactDraft("Rex is a dog 🐕", "alice", 1_700_000_000.5, "s1", {"source": {"app": "x", "n": [1, None]}})
    fact_id = only_id(store.add(ALICE, [draft], FakeEmbedder().embed([draft.text])))
    fact = store.get(ALICE, fact_id)
    assert fact is not None and fact.owner == ALICE
    assert (fact.text, fact.speaker, fact.occurred_at, fact.session_id) == (draft.text, "alice", 1_700_000_000.5, "s1")
    assert fact.metadata == draft.metadata


def test_the_same_text_and_speaker_is_a_duplicate_with_the_first_id(store: FactStore) -> None:
    first, second = add(store, ALICE, "Rex is a dog", "Rex is a dog")
    (third,) = add(store, ALICE, "  Rex is a dog\n")
    assert [first.status, second.status, third.status] == ["stored", "duplicate", "duplicate"]
    assert first.id == second.id == third.id
    assert store.count(ALICE) == 1


def test_composed_and_decomposed_letters_are_the_same_text(store: FactStore) -> None:
    composed, decomposed = add(store, ALICE, "caf\u00e9", "cafe\u0301")
    assert decomposed.status == "duplicate" and decomposed.id == composed.id


def test_another_speaker_or_owner_makes_another_fact(store: FactStore) -> None:
    drafts = [FactDraft("I like tea", speaker) for speaker in (None, "", "alice", "bob")]
    vectors = FakeEmbedder().embed([draft.text for draft in drafts])
    assert {outcome.status for outcome in store.add(ALICE, drafts, vectors)} == {"stored"}
    assert {outcome.status for outcome in store.add(BOB, drafts, vectors)} == {"stored"}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (Owner("a", "b/c"), Owner("a/b", "c")),
        (Owner("local", "test_user"), Owner("local", "test_user1")),
        (Owner("local", "alice"), Owner("local", "Alice")),
        (Owner("local", "caf\u00e9"), Owner("local", "cafe\u0301")),
        (Owner("local", "a%"), Owner("local", "ab")),
    ],
)
def test_owners_with_similar_names_never_meet(store: FactStore, left: Owner, right: Owner) -> None:
    fact_id = only_id(add(store, left, "the code is 1234"))
    assert store.get(right, fact_id) is None
    assert store.page(right, 10).facts == ()
    assert not store.delete(right, fact_id)
    assert store.delete_owner(right) == ()
    assert store.count(left) == 1 and store.epoch(left) == 0


def test_pages_of_257_facts_hold_each_once_oldest_first(store: FactStore) -> None:
    texts = [f"fact number {i}" for i in range(257)]
    add(store, ALICE, *texts)
    add(store, BOB, "not hers")
    seen, cursor = [], None
    while True:
        page = store.page(ALICE, 64, cursor)
        seen += [fact.text for fact in page.facts]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == texts


def test_a_page_that_ends_with_the_last_fact_has_no_next(store: FactStore) -> None:
    add(store, ALICE, "one", "two")
    assert store.page(ALICE, 2).next_cursor is None
    assert store.page(ALICE, 1).next_cursor is not None


@pytest.mark.parametrize(
    "cursor", ["", "x", "¤", "YWZ0ZXI6", "YWZ0ZXI6LTE", "YWZ0ZXI6OTk5OTk5OTk5OTk5OTk5OTk5OQ", "AAAA"]
)
def test_a_bad_cursor_is_refused_by_name(store: FactStore, cursor: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        store.page(ALICE, 10, cursor)
    assert caught.value.param == "cursor"


@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_page_size_out_of_range_is_refused_by_name(store: FactStore, limit: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        store.page(ALICE, limit)
    assert caught.value.param == "limit"


def test_seq_grows_and_is_never_given_out_again(store: FactStore) -> None:
    first, last = add(store, ALICE, "one", "two")
    assert first.id is not None and last.id is not None
    newest = store.get_many(ALICE, [last.id])[last.id].seq
    store.delete(ALICE, last.id)
    (fact,) = store.get_many(ALICE, [only_id(add(store, ALICE, "three"))]).values()
    assert fact.seq > newest


def test_oldest_gives_the_first_facts_of_this_owner_alone(store: FactStore) -> None:
    add(store, BOB, "his")
    add(store, ALICE, "one", "two", "three")
    assert [fact.text for fact in store.oldest(ALICE, 2)] == ["one", "two"]
    assert len(store.oldest(ALICE, 10)) == 3


def test_every_delete_bumps_the_owners_epoch_and_a_vain_one_does_not(store: FactStore, path: Path) -> None:
    fact_id = only_id(add(store, ALICE, "one"))
    assert store.epoch(ALICE) == 0
    assert store.delete(ALICE, fact_id) and store.epoch(ALICE) == 1
    assert not store.delete(ALICE, fact_id) and store.epoch(ALICE) == 1
    store.delete_owner(ALICE)
    store.close()
    reopened = FactStore(path)
    assert reopened.epoch(ALICE) == 2 and reopened.epoch(BOB) == 0
    reopened.close()


def test_a_deleted_owner_leaves_the_others_alone(store: FactStore) -> None:
    outcomes = add(store, ALICE, "one", "two")
    add(store, BOB, "three")
    assert store.delete_owner(ALICE) == tuple(outcome.id for outcome in outcomes)
    assert store.owners() == (BOB,)


def test_a_deleted_text_can_be_stored_again_under_a_new_id(store: FactStore) -> None:
    fact_id = only_id(add(store, ALICE, "one"))
    store.delete(ALICE, fact_id)
    (again,) = add(store, ALICE, "one")
    assert again.status == "stored" and again.id != fact_id


def test_over_the_owners_limit_nothing_is_stored_and_others_can_go_on(path: Path) -> None:
    store = FactStore(path, max_facts_per_owner=3)
    add(store, ALICE, "one", "two")
    with pytest.raises(StorageFull):
        add(store, ALICE, "three", "four")
    assert store.count(ALICE) == 2
    add(store, ALICE, "three")
    assert add(store, ALICE, "one")[0].status == "duplicate"
    add(store, BOB, "one")
    store.close()


def test_vectors_come_back_bit_for_bit_in_order_of_insertion(store: FactStore) -> None:
    hers, his = ["one", "two", "three"], ["four"]
    hers_ids = tuple(outcome.id for outcome in add(store, ALICE, *hers))
    add(store, BOB, *his)
    stored = {vectors.owner: vectors for vectors in store.vectors()}
    assert stored[ALICE].fact_ids == hers_ids
    assert np.array_equal(stored[ALICE].matrix, FakeEmbedder().embed(hers))
    assert np.array_equal(stored[BOB].matrix, FakeEmbedder().embed(his))


def test_another_embedder_than_the_first_is_refused_naming_both(store: FactStore) -> None:
    store.claim_embedder("one-16", 16)
    store.claim_embedder("one-16", 16)
    add(store, ALICE, "tea")
    with pytest.raises(ConfigError, match=r"other-32.*one-16.*inferscale reindex --embedder other-32"):
        store.claim_embedder("other-32", 32)


def test_deleted_bytes_are_gone_from_every_file_after_compaction(store: FactStore, path: Path) -> None:
    canary = "canary-5b1f"
    add(store, Owner("local", canary), f"my code is {canary}")
    add(store, ALICE, "stays")

    def files_with_canary() -> list[str]:
        return [file.name for file in path.parent.iterdir() if canary.encode() in file.read_bytes()]

    assert files_with_canary()
    store.delete_owner(Owner("local", canary))
    store.compact()
    assert files_with_canary() == []
    assert store.count(ALICE) == 1


def test_writes_are_synced_to_disk_and_deleted_pages_overwritten(store: FactStore) -> None:
    with store._database.reading() as connection:
        pragmas = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "secure_delete")
        }
    full = 2
    assert pragmas == {"synchronous": full, "secure_delete": 1}


def test_the_file_is_readable_for_its_owner_alone(store: FactStore, path: Path) -> None:
    add(store, ALICE, "one")
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}


def test_the_store_is_an_ordinary_sqlite_file_that_checks_out(store: FactStore, path: Path) -> None:
    add(store, ALICE, "one")
    with sqlite3.connect(path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    other.close()
