"""A store that cannot be opened, and a store whose disk fails at every possible call."""

from __future__ import annotations

import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.database import MIGRATIONS
from inferscale_server.errors import DataFolderError, RequestError, StartupError, StorageFull, StoreCorrupt, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, Owner
from tests.memory.fakes import FakeEmbedder

ALICE = Owner("local", "alice")
DRAFTS = [FactDraft("one"), FactDraft("two"), FactDraft("three")]


class FaultyConnection(sqlite3.Connection):
    """Fails its n-th statement from when it was armed, before or after the statement took effect."""

    left = -1
    after = False
    code = sqlite3.SQLITE_IOERR

    def execute(self, *args: Any) -> sqlite3.Cursor:
        cls = type(self)
        cls.left -= 1
        if cls.left != 0:
            return super().execute(*args)
        if cls.after:
            super().execute(*args).fetchall()
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = cls.code
        raise error


def faulty_store(path: Path) -> tuple[FactStore, type[FaultyConnection]]:
    class Connection(FaultyConnection):
        """One counter a store."""

    return FactStore(path, connect=partial(sqlite3.connect, factory=Connection)), Connection


def add(store: FactStore) -> None:
    store.add(ALICE, DRAFTS, FakeEmbedder().embed([draft.text for draft in DRAFTS]))


def texts(store: FactStore) -> list[str]:
    return [fact.text for fact in store.oldest(ALICE, 100)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("code", "raised"), [(sqlite3.SQLITE_IOERR, Unavailable), (sqlite3.SQLITE_FULL, StorageFull)])
def test_an_add_that_fails_at_any_call_stores_all_or_nothing(
    tmp_path: Path, after: bool, code: int, raised: type[RequestError]
) -> None:
    failures = 0
    for call in range(1, 100):
        store, fault = faulty_store(tmp_path / f"{call}.sqlite3")
        fault.left, fault.after, fault.code = call, after, code
        try:
            add(store)
        except RequestError as error:
            failures += 1
            assert type(error) is raised
        fired, fault.left = fault.left <= 0, -1
        assert texts(store) in ([], ["one", "two", "three"]), call
        add(store)
        assert texts(store) == ["one", "two", "three"], call
        store.close()
        if not fired:
            break
    assert failures == call - 1 >= 8  # BEGIN, a look and an insert for each of three, the count, COMMIT


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_delete_that_fails_at_any_call_deletes_all_or_nothing(tmp_path: Path, after: bool) -> None:
    failures = 0
    for call in range(1, 100):
        store, fault = faulty_store(tmp_path / f"{call}.sqlite3")
        add(store)
        fault.left, fault.after = call, after
        try:
            store.delete_owner(ALICE)
        except Unavailable:
            failures += 1
        fired, fault.left = fault.left <= 0, -1
        assert (store.count(ALICE), store.epoch(ALICE)) in ((3, 0), (0, 1)), call
        store.delete_owner(ALICE)
        assert store.count(ALICE) == 0
        store.close()
        if not fired:
            break
    assert failures == call - 1 >= 5


def test_a_rollback_that_fails_too_does_not_leak_into_the_next_write(tmp_path: Path) -> None:
    class FailsTwice(FaultyConnection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            if args[0] == "ROLLBACK" and FailsTwice.rollbacks == 0:
                FailsTwice.rollbacks = 1
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(*args)

        rollbacks = 0

    store = FactStore(tmp_path / "facts.sqlite3", connect=partial(sqlite3.connect, factory=FailsTwice))
    FailsTwice.left = 4
    with pytest.raises(Unavailable):
        add(store)
    assert FailsTwice.rollbacks == 1
    add(store)
    assert texts(store) == ["one", "two", "three"]
    store.close()


def test_a_full_disk_keeps_what_is_there_and_says_so(tmp_path: Path) -> None:
    store = FactStore(tmp_path / "facts.sqlite3")
    add(store)
    with store._database.reading() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    long = [FactDraft(f"{i} " + "x" * 4000) for i in range(20)]
    with pytest.raises(StorageFull):
        store.add(ALICE, long, FakeEmbedder().embed([draft.text for draft in long]))
    assert texts(store) == ["one", "two", "three"]
    store.close()


def test_another_writer_that_holds_the_file_makes_a_write_unavailable(tmp_path: Path) -> None:
    store = FactStore(tmp_path / "facts.sqlite3")
    with store._database.reading() as connection:
        connection.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "facts.sqlite3", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable):
        add(store)
    other.execute("ROLLBACK")
    other.close()
    add(store)
    store.close()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("content", [b"hello", b"not a database " * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database_is_refused_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "facts.sqlite3"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=str(path)) as caught:
        FactStore(path)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == {path.name: content}


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for offset in range(4096, len(content), 4096):
        content[offset : offset + 64] = b"\xff" * 64
    path.write_bytes(content)


def fill(path: Path) -> None:
    store = FactStore(path)
    store.add(ALICE, [FactDraft(f"fact {i}") for i in range(200)], FakeEmbedder().embed(["x"] * 200))
    store.close()


def test_a_damaged_page_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    fill(path)
    damage(path)
    before = snapshot(tmp_path)
    with pytest.raises(StoreCorrupt) as caught:
        FactStore(path)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


def test_a_damaged_file_with_a_log_left_by_a_crash_is_refused_unchanged(tmp_path: Path) -> None:
    path, crashed = tmp_path / "facts.sqlite3", tmp_path / "crashed"
    fill(path)
    store = FactStore(path)
    add(store)
    crashed.mkdir()
    for name in (path.name, path.name + "-wal"):
        shutil.copy(tmp_path / name, crashed)
    store.close()
    damage(crashed / path.name)
    before = snapshot(crashed)
    with pytest.raises(StoreCorrupt):
        FactStore(crashed / path.name)
    after = snapshot(crashed)
    assert {name: after.get(name) for name in before} == before


def test_a_newer_schema_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    FactStore(path).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    before = snapshot(tmp_path)
    with pytest.raises(StartupError, match="newer"):
        FactStore(path)
    assert snapshot(tmp_path) == before


def test_another_programs_database_is_refused_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    before = snapshot(tmp_path)
    with pytest.raises(StoreCorrupt, match="another program"):
        FactStore(path)
    assert snapshot(tmp_path) == before


def test_a_path_that_cannot_be_written_is_a_data_folder_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "facts.sqlite3", tmp_path):
        with pytest.raises(DataFolderError, match=str(path)):
            FactStore(path)


def test_a_first_start_that_failed_halfway_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite3"

    class FailsLate(FaultyConnection):
        left = 10

    with pytest.raises(DataFolderError):
        FactStore(path, connect=partial(sqlite3.connect, factory=FailsLate))
    store = FactStore(path)
    add(store)
    store.close()
