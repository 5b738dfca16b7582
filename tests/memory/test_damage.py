"""A store whose bytes are wrong is one line, whoever meets it: no traceback, and nothing of what it held."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from inferscale_server.backup import back_up, restore
from inferscale_server.database import inspect
from inferscale_server.errors import StoreCorrupt, Unavailable
from inferscale_server.facts import FactStore
from inferscale_server.reserve import reserve_of
from inferscale_server.snapshot import snapshot
from inferscale_server.verify import verify
from tests.memory.stores import ALICE, filled

NOT_UTF8 = b"\xff\xfe\xfd"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "facts.sqlite3", "one", "two", "three")


def unnamed(path: Path, everywhere: bool) -> Path:
    """An index gets a name that is no text; `everywhere`: SQLite can still read the schema, and quotes the name."""
    with closing(sqlite3.connect(path)) as store:
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        page_size = store.execute("PRAGMA page_size").fetchone()[0]
        page = store.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'facts_of_owner'").fetchone()[0]
    content = path.read_bytes()
    content = content.replace(b"facts_of_owner", NOT_UTF8 + b"ts_of_owner", -1 if everywhere else 1)
    if everywhere:
        end = page * page_size
        content = content[: end - 64] + bytes(64) + content[end:]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("everywhere", [True, False])
def test_bytes_that_are_no_text_end_in_one_line_everywhere(tmp_path: Path, path: Path, everywhere: bool) -> None:
    backup = back_up(path, tmp_path / "backup").path
    unnamed(path, everywhere)
    with pytest.raises(StoreCorrupt) as caught:
        inspect(path)
    assert "\n" not in str(caught.value)
    for opened in (lambda: FactStore(path), lambda: back_up(path, tmp_path / "other")):
        with pytest.raises(StoreCorrupt):
            opened()
    assert [finding.name for finding in verify(path).broken] == ["file"]
    restored = restore(backup, path, force=True)
    assert (restored.facts, restored.kept is not None) == (3, True)
    assert verify(path).broken == ()


def test_a_fact_whose_text_is_no_text_is_damage_and_is_not_quoted(path: Path) -> None:
    with closing(sqlite3.connect(path)) as store:
        store.execute("UPDATE facts SET text = CAST(x'7365637265742dff' AS TEXT) WHERE seq = 1")
        store.commit()
    with closing(FactStore(path)) as store, pytest.raises(Unavailable) as caught:
        store.oldest(ALICE, 9)
    assert (caught.value.code, "secret" in str(caught.value)) == ("store_corrupt", False)
    with pytest.raises(StoreCorrupt) as damaged, snapshot(path) as seen:
        seen.execute("SELECT text FROM facts").fetchall()
    assert "secret" not in str(damaged.value)


@pytest.mark.parametrize("trace", ["kv", "reserve"])
def test_an_empty_store_where_a_server_has_been_does_not_pass(path: Path, tmp_path: Path, trace: str) -> None:
    for side in ("", "-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    path.touch()
    kv = tmp_path / "kv"
    assert verify(path, kv).broken == (), "a new folder is fine"
    if trace == "kv":
        (kv / "ab").mkdir(parents=True)
    else:
        reserve_of(path).touch()
    (finding,) = verify(path, kv).broken
    assert finding.reason is not None and "empty or damaged" in finding.reason
