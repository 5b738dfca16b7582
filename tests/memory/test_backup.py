"""A backup is the store as of one moment, whole or not there; a restore leaves the old store or the new one."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from inferscale_server.backup import back_up, restore
from inferscale_server.data_folder import FACTS_LOCK, LOCK_NAME, DataFolder
from inferscale_server.database import MIGRATIONS
from inferscale_server.errors import Conflict, DataFolderError, InvalidRequest, StartupError, StorageFull, StoreCorrupt
from inferscale_server.facts import FactStore
from inferscale_server.snapshot import copy_store
from inferscale_server.types import FactDraft, IdempotencyKey, Owner
from inferscale_server.verify import verify
from tests.memory.stores import ALICE, EMBEDDER, damage, filled, remember, texts_in

BOB = Owner("local", "bob")
WRITER = """
import itertools, sys
from pathlib import Path
from inferscale_server.facts import FactStore
from tests.memory.stores import remember
store = FactStore(Path(sys.argv[1]))
for i in itertools.count():
    print(*remember(store, f"fact {i}"), flush=True)
"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_R9_a_backup_beside_a_writer_holds_all_that_was_acknowledged_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferscale_server.snapshot.PAGES_A_STEP", 4)
    path = filled(tmp_path / "facts.sqlite3", *(f"{i} " + "x" * 2_000 for i in range(60)))
    elsewhere = tmp_path / "elsewhere" / "facts.sqlite3"
    elsewhere.parent.mkdir()
    steps: list[str] = []
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        next_id = writer.stdout.readline
        before = [next_id().strip() for _ in range(100)]
        back_up(path, tmp_path / "b", tell=lambda done, total: steps.append(next_id().strip()))
        restore(tmp_path / "b", elsewhere)
        with closing(FactStore(elsewhere)) as store:
            kept = [fact.id for fact in store.oldest(ALICE, 100_000)][60:]
        acknowledged = [*before, *steps]
        while len(acknowledged) <= len(kept):
            acknowledged.append(next_id().strip())
        writer.kill()
    assert verify(elsewhere).broken == ()
    assert len(steps) > 5
    assert len(kept) >= len(before) and acknowledged[: len(kept)] == kept
    print(f"R9: 100 facts acknowledged before a backup in {len(steps)} steps, 0 missing, 0 gaps; verify clean")


def test_a_writer_does_not_make_a_backup_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "facts.sqlite3", *(f"{i} " + "x" * 2_000 for i in range(60)))
    monkeypatch.setattr("inferscale_server.snapshot.PAGES_A_STEP", 4)
    steps: list[tuple[int, int]] = []
    with closing(FactStore(path)) as store:

        def write(done: int, total: int) -> None:
            steps.append((done, total))
            remember(store, f"written at {len(steps)}")

        written = back_up(path, tmp_path / "b", tell=write)
    assert written.facts == 60
    assert len(steps) > 5 and [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1][0] == steps[-1][1]


def test_a_backup_is_one_private_file_that_is_complete_by_itself(tmp_path: Path) -> None:
    path, target = filled(tmp_path / "facts.sqlite3", "one", "two"), tmp_path / "out" / "b"
    target.parent.mkdir()
    written = back_up(path, target)
    assert (written.facts, written.bytes) == (2, target.stat().st_size)
    assert target.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(f"{target.as_uri()}?mode=ro&immutable=1", uri=True)) as alone:
        assert alone.execute("SELECT count(*) FROM facts").fetchone() == (2,)
    assert [file.name for file in target.parent.iterdir()] == ["b"]


def test_a_backup_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    path, target = filled(tmp_path / "facts.sqlite3", "one"), tmp_path / "b"
    back_up(path, target)
    first = target.read_bytes()
    with closing(FactStore(path)) as store:
        remember(store, "two")
    with pytest.raises(Conflict, match="exists"):
        back_up(path, target)
    assert target.read_bytes() == first
    assert back_up(path, target, force=True).facts == 2


def test_force_replaces_backups_alone(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    (tmp_path / "letter").write_text("dear")
    (tmp_path / "link").symlink_to(path)
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    for name in ("letter", "other"):
        with pytest.raises(Conflict, match="not a backup"):
            back_up(path, tmp_path / name, force=True)
    assert (tmp_path / "letter").read_text() == "dear"
    for name in ("facts.sqlite3", "facts.sqlite3-wal", "link"):
        with pytest.raises(InvalidRequest, match="itself"):
            back_up(path, tmp_path / name, force=True)
    assert texts_in(path) == ["one"]


HOLD_FOLDER = """
import sys
from pathlib import Path
from inferscale_server.data_folder import DataFolder
DataFolder.hold(Path(sys.argv[1]), facts=Path(sys.argv[2]) if len(sys.argv) > 2 else None)
"""


def test_a_backup_onto_a_lock_leaves_the_folder_locked(tmp_path: Path) -> None:
    store = filled(tmp_path / "facts.sqlite3")
    with DataFolder.hold(tmp_path, facts=store):
        for lock in (LOCK_NAME, store.name + FACTS_LOCK):
            with pytest.raises(Conflict, match="not a backup"):
                back_up(store, tmp_path / lock, force=True)
        for asked in ([tmp_path], [tmp_path / "elsewhere", store]):
            other = subprocess.run(
                [sys.executable, "-c", HOLD_FOLDER, *map(str, asked)], capture_output=True, text=True
            )
            assert "is in use by" in other.stderr


def test_a_store_is_not_backed_up_into_a_hard_link_of_itself(tmp_path: Path) -> None:
    store = filled(tmp_path / "facts.sqlite3")
    (link := tmp_path / "link").hardlink_to(store)
    with pytest.raises(InvalidRequest, match="itself"):
        back_up(store, link, force=True)


def test_a_backup_into_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    with pytest.raises(InvalidRequest, match="no folder"):
        back_up(path, tmp_path / "nowhere" / "b")


def test_a_damaged_store_is_not_backed_up(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", *(f"fact {i}" for i in range(200)))
    back_up(path, tmp_path / "b")
    good = (tmp_path / "b").read_bytes()
    damage(path)
    with pytest.raises(StoreCorrupt):
        back_up(path, tmp_path / "b", force=True)
    assert (tmp_path / "b").read_bytes() == good
    assert sorted(file.name for file in tmp_path.iterdir() if "part" in file.name) == []


def test_a_store_that_forgot_an_owner_with_keys_is_backed_up_and_restored(tmp_path: Path) -> None:
    path, key = filled(tmp_path / "facts.sqlite3", "one"), IdempotencyKey("key-1", "digest-1")
    with closing(FactStore(path)) as store:
        store.add(BOB, [FactDraft("two")], EMBEDDER.embed(["two"]), key)
        store.delete_owner(BOB)
    back_up(path, tmp_path / "b")
    assert restore(tmp_path / "b", tmp_path / "restored").facts == 1
    with closing(FactStore(tmp_path / "restored")) as store, pytest.raises(Conflict) as caught:
        store.earlier(BOB, key, [FactDraft("two")])
    assert caught.value.code == "memories_deleted"


def test_what_could_not_be_restored_is_no_backup_and_the_older_one_stays(tmp_path: Path) -> None:
    path, target = filled(tmp_path / "facts.sqlite3", "one"), tmp_path / "b"
    back_up(path, target)
    good = target.read_bytes()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE usage SET facts = facts + 1")
    with pytest.raises(StoreCorrupt, match=r"facts\.sqlite3 does not check out: usage"):
        back_up(path, target, force=True)
    assert target.read_bytes() == good and ".part" not in str(list(tmp_path.iterdir()))


def test_a_full_disk_leaves_the_older_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    back_up(path, tmp_path / "b")
    good = (tmp_path / "b").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageFull):
        back_up(path, tmp_path / "b", force=True)
    assert (tmp_path / "b").read_bytes() == good
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_restored_store_is_what_was_backed_up(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one", "two")
    back_up(path, tmp_path / "b")
    new = tmp_path / "new" / "facts.sqlite3"
    new.parent.mkdir()
    done = restore(tmp_path / "b", new)
    assert (done.facts, done.replaced_facts, done.kept) == (2, 0, None)
    assert texts_in(new) == ["one", "two"]


def test_facts_are_not_replaced_unless_forced(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    back_up(path, tmp_path / "b")
    with closing(FactStore(path)) as store:
        remember(store, "two")
    with pytest.raises(Conflict, match="2 facts"):
        restore(tmp_path / "b", path)
    assert texts_in(path) == ["one", "two"]
    assert restore(tmp_path / "b", path, force=True).replaced_facts == 2
    assert texts_in(path) == ["one"]


def test_an_old_write_ahead_log_is_not_replayed_over_a_restored_store(tmp_path: Path) -> None:
    """What a killed server leaves: pages in the log that belong to the replaced file."""
    path = filled(tmp_path / "facts.sqlite3", "one")
    back_up(path, tmp_path / "b")
    store = FactStore(path)
    remember(store, *(f"later {i}" for i in range(50)))
    killed = tmp_path / "killed"
    killed.mkdir()
    for end in ("", "-wal"):
        (killed / f"facts.sqlite3{end}").write_bytes((tmp_path / f"facts.sqlite3{end}").read_bytes())
    store.close()
    assert (killed / "facts.sqlite3-wal").stat().st_size > 0
    restore(tmp_path / "b", killed / "facts.sqlite3", force=True)
    assert texts_in(killed / "facts.sqlite3") == ["one"]
    assert verify(killed / "facts.sqlite3").broken == ()


def test_a_damaged_store_is_kept_beside_the_restored_one(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", *(f"fact {i}" for i in range(200)))
    back_up(path, tmp_path / "b")
    for round_ in range(2):
        damage(path)
        broken = path.read_bytes()
        kept = restore(tmp_path / "b", path).kept
        assert kept is not None and kept.read_bytes() == broken
        assert len(texts_in(path)) == 200, round_
    assert len(list(tmp_path.glob("*.replaced*"))) == 2


def test_derived_folders_go_with_the_old_store(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    back_up(path, tmp_path / "b")
    (tmp_path / "kv" / "00").mkdir(parents=True)
    restore(tmp_path / "b", path, (tmp_path / "kv", tmp_path / "none"), force=True)
    assert not (tmp_path / "kv").exists()


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_backup_is_not_restored(tmp_path: Path, content: bytes) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    (tmp_path / "b").write_bytes(content)
    before = files_of(tmp_path)
    with pytest.raises(StoreCorrupt, match=re.escape(str(tmp_path / "b"))):
        restore(tmp_path / "b", path, force=True)
    assert files_of(tmp_path) == before


def test_a_backup_that_is_not_there_is_not_restored(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match="not a file"):
        restore(tmp_path / "b", tmp_path / "facts.sqlite3")


def test_a_store_is_not_restored_from_itself(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    with pytest.raises(InvalidRequest, match="itself"):
        restore(path, path, force=True)


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", *(f"fact {i}" for i in range(200)))
    back_up(path, tmp_path / "b")
    damage(tmp_path / "b")
    with pytest.raises(StoreCorrupt):
        restore(tmp_path / "b", path, force=True)
    assert len(texts_in(path)) == 200


def set_schema(path: Path, schema: int) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema}")


def test_a_backup_of_a_newer_schema_is_not_restored(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    back_up(path, tmp_path / "b")
    set_schema(tmp_path / "b", len(MIGRATIONS) + 1)
    with pytest.raises(StartupError, match="newer"):
        restore(tmp_path / "b", path, force=True)
    assert texts_in(path) == ["one"]


def test_a_store_of_a_newer_schema_is_replaced_only_when_forced_and_kept(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    back_up(path, tmp_path / "b")
    set_schema(path, len(MIGRATIONS) + 1)
    with pytest.raises(StartupError, match="newer"):
        restore(tmp_path / "b", path)
    assert restore(tmp_path / "b", path, force=True).kept is not None
    assert texts_in(path) == ["one"]


def test_a_backup_of_the_first_schema_is_restored_and_migrated(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "b", isolation_level=None)) as old:
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute("PRAGMA user_version = 1")
        old.execute("INSERT INTO embedder VALUES (1, 'fake-16', 16)")
        vector = b"\x00\x00\x80\x3e" * 16
        old.execute(
            "INSERT INTO facts (id, tenant, user, sameness, text, metadata, created_at, embedding) "
            "VALUES ('f1', 'local', 'alice', x'00', 'one', '{}', 1.0, ?)",
            (vector,),
        )
    restore(tmp_path / "b", tmp_path / "facts.sqlite3")
    assert texts_in(tmp_path / "facts.sqlite3") == ["one"]
    assert verify(tmp_path / "facts.sqlite3").broken == ()


def test_a_copy_that_fails_at_the_rename_leaves_what_was_there(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").touch()
    with pytest.raises(Exception, match="cannot be used"):
        copy_store(path, tmp_path / "b")
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize("place", ["/proc/no-such-place/b", "/proc/b", "x" * 300, "file/b"])
def test_a_place_where_no_file_can_be_made_is_the_callers_error_with_the_reason(tmp_path: Path, place: str) -> None:
    path = filled(tmp_path / "facts.sqlite3", "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest) as caught:
        back_up(path, tmp_path / place)
    assert caught.value.param == "path" and ".part" not in caught.value.message


def test_a_backup_of_a_damaged_store_names_the_store_and_no_temporary_file(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", *(f"{i} " + "x" * 2_000 for i in range(60)))
    content = bytearray(path.read_bytes())
    content[-8192:-4096] = b"\xff" * 4096
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt) as caught:
        back_up(path, tmp_path / "b")
    assert str(path) in str(caught.value) and ".part" not in str(caught.value)
    assert not (tmp_path / "b").exists()
