"""A full disk keeps nobody from deleting: a reserve is given back for it, and kept again when there is room."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inferscale_server import reserve
from inferscale_server.cleanup import clean
from inferscale_server.errors import StorageFull
from inferscale_server.facts import FactStore
from inferscale_server.reserve import RESERVE_BYTES, Reserve, free_bytes, reserve_of
from inferscale_server.types import Fact, FactDraft, Owner
from tests.memory.fakes import FakeEmbedder, RecordingSink, started

ALICE = Owner("local", "alice")
SIZE = 64 * 1024


class FullDisk(sqlite3.Connection):
    """Whatever is written meets a full disk for as long as one of these files lies there."""

    takes_room: tuple[Path, ...] = ()

    def execute(self, *args: Any) -> sqlite3.Cursor:
        if args[0] in ("COMMIT", "VACUUM") and any(path.exists() for path in type(self).takes_room):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(*args)


def store_on(path: Path, reserve_bytes: int = SIZE) -> tuple[FactStore, type[FullDisk]]:
    class Disk(FullDisk):
        """One disk a store."""

    factory = partial(sqlite3.connect, factory=Disk)
    return FactStore(path, connect=factory, reserve_bytes=reserve_bytes), Disk


def remember(store: FactStore, *texts: str) -> Sequence[Fact]:
    store.add(ALICE, [FactDraft(text) for text in texts], FakeEmbedder().embed(list(texts)))
    return store.oldest(ALICE, 100)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.sqlite3"


def test_a_store_keeps_its_reserve_only_when_it_is_told_to(path: Path) -> None:
    FactStore(path).close()
    assert not reserve_of(path).exists()
    FactStore(path, reserve_bytes=SIZE).close()
    assert reserve_of(path).stat().st_size == SIZE
    assert reserve_of(path).stat().st_blocks * 512 >= SIZE
    assert RESERVE_BYTES >= 1024 * 1024


@pytest.mark.parametrize("what", ["fact", "owner", "expired", "tombstones", "compact"])
def test_what_gives_room_back_succeeds_on_a_full_disk(path: Path, what: str) -> None:
    store, disk = store_on(path)
    first, *_ = remember(store, "one", "two")
    disk.takes_room = (reserve_of(path),)
    with pytest.raises(StorageFull, match="nothing was stored"):
        remember(store, "three")
    assert reserve_of(path).exists(), "an add does not get the reserve"
    if what == "fact":
        assert store.delete(ALICE, first.id)
        assert [fact.text for fact in store.oldest(ALICE, 9)] == ["two"]
    elif what == "owner":
        assert len(store.delete_owner(ALICE)) == 2
    elif what == "expired":
        assert store.expire(0.0) == ()
    elif what == "tombstones":
        assert store.drop_tombstones(0.0) == 0
    else:
        assert clean(store, path).bytes_after > 0
    assert reserve_of(path).exists(), "there is room, so it is kept again"
    store.close()


def test_without_room_even_then_a_delete_says_that_nothing_was_deleted(path: Path) -> None:
    store, disk = store_on(path)
    (fact,) = remember(store, "one")
    disk.takes_room = (path,)
    with pytest.raises(StorageFull, match="nothing was deleted"):
        store.delete(ALICE, fact.id)
    with pytest.raises(StorageFull, match="rewrite"):
        store.compact()
    disk.takes_room = ()
    assert store.count(ALICE) == 1
    assert store.delete(ALICE, fact.id)
    store.close()


def test_a_store_opened_by_a_command_gives_back_what_the_server_left(path: Path) -> None:
    FactStore(path, reserve_bytes=SIZE).close()
    store, disk = store_on(path, reserve_bytes=0)
    (fact,) = remember(store, "one")
    disk.takes_room = (reserve_of(path),)
    assert store.delete(ALICE, fact.id)
    assert not reserve_of(path).exists()
    store.close()


async def test_a_users_kv_goes_first_when_the_facts_cannot(path: Path, tmp_path: Path) -> None:
    kv = tmp_path / "kv"

    class Sink(RecordingSink):
        """Drops KV that takes room."""

        def owner_forgotten(self, owner: Owner) -> None:
            super().owner_forgotten(owner)
            kv.unlink(missing_ok=True)

    store, disk = store_on(path, reserve_bytes=0)
    memory = await started(store, sink=Sink())
    await memory.add(ALICE, [FactDraft("one")])
    kv.touch()
    disk.takes_room = (kv,)
    assert await memory.delete_owner(ALICE) == 1
    assert memory.count(ALICE) == 0
    await memory.aclose()


def test_a_reserve_is_not_made_where_there_is_little_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "free_bytes", lambda folder: 3 * SIZE)
    kept = Reserve(reserve_of(path), SIZE)
    kept.keep()
    assert not reserve_of(path).exists()
    monkeypatch.setattr(reserve, "free_bytes", free_bytes)
    kept.keep()
    assert reserve_of(path).exists()
    assert kept.give_back() and not kept.give_back()


def test_a_reserve_that_cannot_be_made_leaves_nothing_and_raises_nothing(tmp_path: Path) -> None:
    Reserve(tmp_path / "no folder" / "x", SIZE).keep()
    assert list(tmp_path.iterdir()) == []
    assert free_bytes(tmp_path / "no folder") == 0


def test_a_closed_store_leaves_its_reserve(path: Path) -> None:
    with closing(FactStore(path, reserve_bytes=SIZE)):
        pass
    assert reserve_of(path).exists()
