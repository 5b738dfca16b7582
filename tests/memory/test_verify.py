"""`verify` finds what must not be, says it in one line, and says nothing of anybody's words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferscale_server.database import MIGRATIONS
from inferscale_server.facts import FactStore
from inferscale_server.types import FactDraft, IdempotencyKey, Owner
from inferscale_server.verify import Finding, show_verdict, verify
from tests.memory.stores import ALICE, EMBEDDER, damage, filled, remember

CANARY = "the code is 4417"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return filled(tmp_path / "facts.sqlite3", "one", CANARY, "three")


@contextmanager
def behind_its_back(path: Path) -> Iterator[sqlite3.Connection]:
    """A writer that knows none of the rules."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        yield connection


def broken(path: Path) -> list[Finding]:
    findings = list(verify(path).broken)
    assert all(finding.reason and "\n" not in finding.reason for finding in findings)
    assert CANARY not in str(findings) and "alice" not in str(findings)
    return findings


def test_a_store_that_was_used_is_clean(path: Path) -> None:
    with closing(FactStore(path)) as store:
        (gone,) = remember(store, "four")
        store.delete(ALICE, gone)
        store.delete_owner(Owner("local", "nobody"))
    verdict = verify(path)
    assert verdict.broken == ()
    assert {finding.name for finding in verdict.findings} >= {"file", "facts", "embeddings", "epochs", "history"}
    assert show_verdict(verdict)["ok"] is True


def test_an_open_store_is_verified_beside_its_writer(path: Path) -> None:
    with closing(FactStore(path)) as store:
        remember(store, "in the log alone")
        verdict = verify(path)
    assert verdict.broken == ()
    assert "4 of 1 users" in [finding.found for finding in verdict.findings]


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = filled(tmp_path / "facts.sqlite3", *(f"fact {i}" for i in range(200)))
    damage(path)
    (finding,) = broken(path)
    assert finding.name == "file"


def test_a_file_that_is_not_there_or_no_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "hello").write_text("hello")
    for name in ("nothing", "hello"):
        (finding,) = broken(tmp_path / name)
        assert finding.name == "file"


def test_a_fact_may_have_the_id_of_one_that_another_user_deleted_and_of_no_living_one(path: Path) -> None:
    with closing(FactStore(path)) as store:
        first, second, _ = (fact.id for fact in store.oldest(ALICE, 9))
        bobs, bobs_too = remember(store, "five", "six", owner=Owner("local", "bob"))
        store.delete(ALICE, first)
        fact = store.get(ALICE, second)
        assert fact is not None
        store.update(fact, replace(fact, text="second", updated_at=fact.updated_at + 1), None, stale=False)
    with behind_its_back(path) as connection:
        connection.execute("UPDATE facts SET id = ? WHERE id = ?", (first, bobs))
    assert broken(path) == []
    with behind_its_back(path) as connection:
        connection.execute("UPDATE history SET fact_id = ? WHERE fact_id = ?", (bobs_too, second))
    (finding,) = broken(path)
    assert (finding.name, finding.reason) == ("history", "2 are of another owner")


def test_a_newer_schema_is_one_line(path: Path) -> None:
    with behind_its_back(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    (finding,) = broken(path)
    assert finding.reason is not None and "newer" in finding.reason


BAD_VECTORS = [
    ("another dimension", np.full(15, 0.25, "<f4").tobytes()),
    ("another dimension", b""),
    ("not of length 1", np.full(16, 0.5, "<f4").tobytes()),
    ("not of length 1", np.full(16, np.nan, "<f4").tobytes()),
]


@pytest.mark.parametrize(("words", "vector"), BAD_VECTORS)
def test_a_vector_that_cannot_be_searched_is_found(path: Path, words: str, vector: bytes) -> None:
    with behind_its_back(path) as connection:
        connection.execute("UPDATE facts SET embedding = ? WHERE text = 'one'", (vector,))
    (finding,) = broken(path)
    assert finding.name == "embeddings" and finding.reason is not None
    assert finding.reason.startswith("1 ") and words in finding.reason


DIGEST = "0" * 64
NOTE = "INSERT INTO history (owner_digest, fact_id, event, at, text)"
STATEMENTS = [
    ("facts", "UPDATE facts SET metadata = '[1]' WHERE text = 'one'"),
    ("facts", "UPDATE facts SET metadata = '{' || 'a' WHERE text = 'one'"),
    ("facts", "UPDATE facts SET id = '' WHERE text = 'one'"),
    ("embeddings", "DELETE FROM embedder"),
    ("epochs", "INSERT INTO epochs VALUES ('alice', 1)"),
    ("epochs", f"INSERT INTO epochs VALUES ('{DIGEST}', 0)"),
    ("history", f"{NOTE} VALUES ('{DIGEST}', 'gone', 'deleted', 1, '{CANARY}')"),
    ("history", f"{NOTE} VALUES ('{DIGEST}', 'gone', 'added', 1, NULL)"),
    ("history", f"{NOTE} SELECT '{DIGEST}', id, 'added', 1, 'x' FROM facts LIMIT 1"),
    (
        "voices",
        "INSERT INTO history (owner_digest, fact_id, event, at, speaker) "
        f"VALUES ('{DIGEST}', 'gone', 'deleted', 1, 'x')",
    ),
    ("usage", "UPDATE usage SET facts = facts + 1"),
    ("usage", "DELETE FROM usage"),
    ("reindex", "INSERT INTO embeddings_next VALUES ('gone', x'00')"),
    ("idempotency", f"INSERT INTO idempotency VALUES ('{DIGEST}', 'k', 'd', 'torn', 1)"),
    ("idempotency", f"INSERT INTO idempotency VALUES ('{DIGEST}', 'k', 'd', '{{}}', 1)"),
    ("idempotency", f"INSERT INTO idempotency VALUES ('{DIGEST}', 'k', 'd', 'null', 1)"),
    ("idempotency", "INSERT INTO idempotency VALUES ('alice', 'k', '', 'null', 1)"),
    ("times", "UPDATE facts SET occurred_at = 253402387138.0 WHERE seq = 2"),
    ("times", "UPDATE facts SET expires_at = -62135683140.0 WHERE seq = 2"),
]


@pytest.mark.parametrize(("name", "statement"), STATEMENTS)
def test_a_row_that_no_server_writes_is_found(path: Path, name: str, statement: str) -> None:
    with behind_its_back(path) as connection:
        connection.execute(statement)
    assert {finding.name for finding in broken(path)} == {name}


def test_keys_of_an_owner_who_was_forgotten_are_as_they_should_be(path: Path) -> None:
    with closing(FactStore(path)) as store:
        store.add(ALICE, [FactDraft("four")], EMBEDDER.embed(["four"]), IdempotencyKey("key-1", "digest-1"))
        store.delete_owner(ALICE)
    verdict = verify(path)
    assert verdict.broken == ()
    assert "1 answers" in [finding.found for finding in verdict.findings if finding.name == "idempotency"]


def test_verify_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    verify(path)
    assert path.read_bytes() == before
