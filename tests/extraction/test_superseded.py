"""Claims about facts whose place another one took, in the store itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inferscale_server import history
from inferscale_server.backup import back_up
from inferscale_server.database import MIGRATIONS
from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, Owner, Successor
from inferscale_server.verify import verify
from tests.memory.fakes import FakeEmbedder
from tests.memory.stores import ALICE, remember

BOB = Owner("local", "bob")


@pytest.fixture
def store(path: Path) -> Iterator[FactStore]:
    with closing(FactStore(path)) as opened:
        opened.claim_embedder("fake-16", 16)
        yield opened


def supersede(store: FactStore, old_id: str, text: str, owner: Owner = ALICE) -> list[tuple[str | None, str]]:
    outcomes = store.add(owner, [FactDraft(text)], FakeEmbedder().embed([text]), None, [Successor(old_id, 0)])
    return [(outcome.id, outcome.status) for outcome in outcomes]


def texts(store: FactStore) -> list[str]:
    return [fact.text for fact in store.oldest(ALICE, 100)]


def events(store: FactStore, fact_id: str) -> list[tuple[str, str | None]]:
    return [(event.event, event.text) for event in store.history(ALICE, fact_id)]


def test_old_and_new_change_places_in_one_commit_and_the_epoch_grows_once(store: FactStore, path: Path) -> None:
    [old] = remember(store, "I love tea")
    new, gone = supersede(store, old, "I hate tea")
    assert (new[1], gone) == ("stored", (old, "superseded"))
    assert texts(store) == ["I hate tea"] and store.epoch(ALICE) == 1
    assert events(store, old) == [("added", "I love tea"), ("superseded", None)]
    assert verify(path).broken == ()


def test_a_superseded_fact_with_speaker_time_and_session_is_sound_and_can_be_backed_up(
    store: FactStore, path: Path, tmp_path: Path
) -> None:
    draft = FactDraft("I love tea", "Ann", 1_700_000_000.0, "s1", {"mood": "calm"})
    [outcome] = store.add(ALICE, [draft], FakeEmbedder().embed([draft.text]))
    assert outcome.id is not None
    supersede(store, outcome.id, "I hate tea")
    [added, _] = store.history(ALICE, outcome.id)
    assert (added.speaker, added.occurred_at, added.session_id) == ("Ann", 1_700_000_000.0, "s1")
    assert verify(path).broken == ()
    assert back_up(path, tmp_path / "copy").facts == 1


@pytest.mark.parametrize("text", ["I love tea", "I like milk"])
def test_nothing_goes_when_the_new_fact_is_a_duplicate(store: FactStore, text: str) -> None:
    [old, _] = remember(store, "I love tea", "I like milk")
    assert [status for _, status in supersede(store, old, text)] == ["duplicate"]
    assert texts(store) == ["I love tea", "I like milk"] and store.epoch(ALICE) == 0


def test_another_owners_fact_is_never_superseded(store: FactStore) -> None:
    [of_bob] = remember(store, "I love tea", owner=BOB)
    assert [status for _, status in supersede(store, of_bob, "I hate tea")] == ["stored"]
    assert store.get(BOB, of_bob) is not None


def test_a_superseded_fact_can_be_deleted_and_then_nothing_of_its_words_is_left(store: FactStore, path: Path) -> None:
    [old] = remember(store, "my PIN is 4417")
    supersede(store, old, "my PIN has changed")
    assert store.delete(ALICE, old) and not store.delete(BOB, old)
    assert [event for event, text in events(store, old)] == ["added", "superseded", "deleted"]
    assert [text for _, text in events(store, old)] == [None, None, None]
    store.compact()
    assert b"4417" not in path.read_bytes() and verify(path).broken == ()


def test_S9_with_all_of_an_owner_the_superseded_ones_go(store: FactStore, path: Path) -> None:
    [old] = remember(store, "my PIN is 4417")
    supersede(store, old, "my PIN has changed")
    store.delete_owner(ALICE)
    store.compact()
    assert b"4417" not in path.read_bytes() and b"PIN" not in path.read_bytes()
    assert verify(path).broken == ()


def test_the_words_of_a_fact_that_was_to_expire_are_not_kept(store: FactStore) -> None:
    draft = FactDraft("I am in Rome", expires_at=4e9)
    [outcome] = store.add(ALICE, [draft], FakeEmbedder().embed([draft.text]))
    supersede(store, str(outcome.id), "I am back")
    assert events(store, str(outcome.id)) == [("added", None), ("superseded", None)]


def test_nothing_is_kept_of_what_was_superseded_longest_ago(store: FactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_SUPERSEDED_KEPT", 2)
    [fact] = remember(store, "version 0")
    ids = [fact]
    for number in range(1, 5):
        ids.append(str(supersede(store, ids[-1], f"version {number}")[0][0]))
    assert [[text for _, text in events(store, one)[:1]] for one in ids] == [
        [],
        [],
        ["version 2"],
        ["version 3"],
        ["version 4"],
    ]


def test_an_older_store_keeps_its_history_and_learns_to_supersede(path: Path) -> None:
    with closing(FactStore(path)) as store:
        store.claim_embedder("fake-16", 16)
        [one, two] = remember(store, "one", "two")
        store.delete(ALICE, two)
    with closing(sqlite3.connect(path, isolation_level=None)) as older:  # as the schema before wrote it
        older.executescript(
            f"""DROP TRIGGER history_grows; DROP TRIGGER history_shrinks; DROP TRIGGER history_wiped;
            DROP TABLE history_usage; DROP INDEX idempotency_of_owner;
            DROP INDEX history_of_fact; DROP INDEX history_superseded; ALTER TABLE history RENAME TO newer;
            {MIGRATIONS[1][4]}; INSERT INTO history
            SELECT number, owner_digest, fact_id, event, at, text, metadata FROM newer;
            DROP TABLE newer; {MIGRATIONS[1][5]};
            ALTER TABLE facts DROP COLUMN agent_id; ALTER TABLE facts DROP COLUMN run_id; PRAGMA user_version = 3;"""
        )
    with closing(FactStore(path)) as store:
        assert [event for event, _ in events(store, two)] == ["added", "deleted"]
        assert [status for _, status in supersede(store, one, "one more")] == ["stored", "superseded"]
    assert verify(path).broken == ()
