"""`inferscale memories` against the real routes: what it takes, what it prints, how it ends."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_server.cli import main
from tests.cli.memory_server import memory_server

Run = Callable[..., int]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with memory_server(tmp_path_factory.mktemp("store")) as address:
        yield address


@pytest.fixture
def user(request: pytest.FixtureRequest) -> str:
    """A user of this test alone."""
    return str(request.node.name)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, url: str, user: str) -> Run:
    """Run a subcommand for the test's user; returns its exit code."""
    monkeypatch.setenv("INFERSCALE_BASE_URL", url)
    monkeypatch.delenv("INFERSCALE_API_KEY", raising=False)

    def run(*argv: str, stdin: bytes = b"") -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        with pytest.raises(SystemExit) as ended:
            main(["memories", *argv, *(() if "--user" in argv else ("--user", user))])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


@pytest.fixture
def rows(run: Run, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., list[dict[str, Any]]]:
    """Run a subcommand that must succeed, with --json; returns what it printed."""

    def rows(*argv: str, stdin: bytes = b"") -> list[dict[str, Any]]:
        capsysbinary.readouterr()
        assert run(*argv, "--json", stdin=stdin) == 0
        return [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]

    return rows


Rows = Callable[..., list[dict[str, Any]]]


def test_a_fact_is_added_changed_told_and_deleted(rows: Rows) -> None:
    [added] = rows("add", "Rex is a dog.", "--metadata", '{"topic": "pets", "sure": false}', "--expires", "2100-01-01")
    [changed] = rows("update", added["id"], "--text", "Rex is a wolf.", "--metadata", '{"sure": null}')
    assert (changed["text"], changed["metadata"]) == ("Rex is a wolf.", {"topic": "pets"})
    assert changed["expires_at"] == "2100-01-01T00:00:00Z"
    [kept] = rows("update", added["id"], "--expires", "never", "--time", "2025-01-02T03:04:05")
    assert (kept["expires_at"], kept["timestamp"]) == (None, "2025-01-02T03:04:05Z")
    assert rows("get", added["id"]) == [kept]
    assert [event["event"] for event in rows("history", added["id"])] == ["added", "updated", "updated"]
    assert rows("delete", added["id"]) == [{"id": added["id"], "deleted": True}]
    assert rows("list") == []


def test_facts_are_read_from_stdin_a_line_each(rows: Rows) -> None:
    assert len(rows("add", stdin="eins\n\n  zwei ü \n".encode())) == 2
    assert len(rows("add", "-", stdin=b"three\n")) == 1
    assert [fact["text"] for fact in rows("list")] == ["eins", "zwei ü", "three"]


def test_a_new_text_is_read_from_stdin(rows: Rows) -> None:
    [added] = rows("add", "old")
    assert rows("update", added["id"], "--text", "-", stdin=b"new\n")[0]["text"] == "new"


def test_filters_narrow_lists_and_searches(rows: Rows) -> None:
    rows("add", "one", "--metadata", '{"n": 1}')
    rows("add", "two", "--metadata", '{"n": 2}')
    assert [fact["text"] for fact in rows("list", "--filter", '{"n": {"gt": 1}}')] == ["two"]
    assert [hit["text"] for hit in rows("search", "two", "--filter", '{"n": 1}')] == ["one"]


def test_agents_and_runs_keep_their_own_facts(rows: Rows) -> None:
    rows("add", "one", "--agent-id", "a", "--run-id", "r1", "--session", "s1")
    rows("add", "two", "--agent-id", "a")
    rows("add", "three")
    [first] = rows("list", "--run-id", "r1")
    assert (first["text"], first["agent_id"], first["session_id"]) == ("one", "a", "s1")
    assert [hit["text"] for hit in rows("search", "two", "--agent-id", "a", "--k", "1")] == ["two"]
    assert rows("delete", "--all", "--yes", "--agent-id", "a") == [{"deleted": 2}]
    assert [fact["text"] for fact in rows("list")] == ["three"]


def test_a_zone_of_a_time_is_kept(rows: Rows) -> None:
    rows("add", "one", "--time", "2025-01-02T03:04:05+02:00")
    assert rows("list")[0]["timestamp"] == "2025-01-02T01:04:05Z"


def test_nothing_found_is_said_in_words(run: Run, user: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    for argv, words in ((("list",), ""), (("list", "--agent-id", "a"), " match"), (("search", "x"), " match")):
        assert run(*argv) == 0
        assert capsysbinary.readouterr().out.decode() == f"no memories of {user}{words}\n"


def test_an_exported_file_is_imported_as_it_was(rows: Rows, run: Run, tmp_path: Path) -> None:
    file, again = tmp_path / "facts.ndjson", tmp_path / "again.ndjson"
    rows("add", "eins", "two [brackets]", "--speaker", "Ann", "--time", "2025-01-02")
    assert run("export", str(file)) == 0
    assert file.read_bytes().count(b"\n") == 2
    assert rows("delete", "--all", "--yes") == [{"deleted": 2}]
    assert rows("import", str(file)) == [{"imported": 2, "duplicates": 0, "failed": [], "new_ids": 0}]
    assert run("export", str(again)) == 0
    assert again.read_bytes() == file.read_bytes()
    assert {child.name for child in tmp_path.iterdir()} == {"facts.ndjson", "again.ndjson"}


def test_what_a_user_takes_who_has_facts_and_what_the_server_is_are_shown(
    rows: Rows, user: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    rows("add", "one", "two")
    [taken] = rows("footprint")
    assert taken["facts"] == 2 and set(taken["bytes"]) == {"device", "host", "disk", "facts", "index"}
    for command in (["users", "--json"], ["status"]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 0
    shown = capsysbinary.readouterr().out
    assert b'"user_id":"%s","facts":2' % user.encode() in shown and b'"model": "m"' in shown


def test_a_session_that_a_fact_has_is_shown(run: Run, rows: Rows, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    [fact] = rows("add", "one", "--session", "s-17")
    for command in (["list"], ["get", fact["id"]]):
        assert run(*command) == 0
        shown = capsysbinary.readouterr().out
        assert b"session_id" in shown and b"s-17" in shown


def test_a_person_is_shown_a_row_a_tier(run: Run, rows: Rows, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows("add", "one")
    assert run("footprint") == 0
    shown = capsysbinary.readouterr().out.decode()
    for tier in ("device", "host", "disk", "facts", "index"):
        assert re.search(rf"│ {tier} +│ +[\d,]+ │", shown)
    assert "{" not in shown


@pytest.mark.parametrize(("facts", "said"), [(["one"], b"deleted 1 fact\n"), (["one", "two"], b"deleted 2 facts\n")])
def test_one_fact_is_no_facts(
    run: Run, rows: Rows, capsysbinary: pytest.CaptureFixture[bytes], facts: list[str], said: bytes
) -> None:
    rows("add", *facts)
    assert run("delete", "--all", "--yes") == 0
    assert capsysbinary.readouterr().out == said


def test_an_add_that_is_repeated_with_its_idempotency_key_stores_nothing_more(rows: Rows) -> None:
    first = rows("add", "one", "--idempotency-key", "k1")
    assert rows("add", "one", "--idempotency-key", "k1") == first and len(rows("list")) == 1


def test_without_a_file_facts_go_through_stdin_and_stdout(
    rows: Rows, run: Run, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert rows("import", stdin=b'{"text": "one"}\n{"text": "two"}')[0]["imported"] == 2
    assert run("export") == 0
    out = capsysbinary.readouterr()
    assert [json.loads(line)["text"] for line in out.out.splitlines()] == ["one", "two"]
    assert out.err == b"exported 2 facts\n"


def test_lines_that_fail_are_told_and_make_the_import_fail(
    run: Run, rows: Rows, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run("import", stdin=b'{"text": "one"}\n\nnot json\n{"text": "two"}\n') == 1
    told = capsysbinary.readouterr()
    assert told.out == b"2 imported, 0 duplicates, 1 failed\n"
    assert told.err.startswith(b"line 3: ")
    assert len(rows("list")) == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("add",), "stdin holds no text"),
        (("add", "x", "--metadata", "[]"), "--metadata"),
        (("list", "--filter", "{"), "--filter"),
        (("list", "--filter", '{"a": {"above": 1}}'), "above"),
        (("add", "x", "--expires", "2001-01-01"), "passed already"),
        (("add", "x", "--expires", "soon"), "'--expires': 'soon' is no moment: write ISO 8601"),
        (("add", "x", "--time", "yesterday"), "'--time': 'yesterday' is no moment: write ISO 8601"),
        (("add", "x", "--session", ""), "must not be empty"),
        (("add", "x", "--user"), "Usage: inferscale memories add"),
        (("delete", "f1", "--agent-id", "a"), "need --all"),
        (("update", "f1"), "nothing to change"),
        (("update", "f1", "--text", "x"), "no fact"),
        (("history", "f1"), "no fact"),
        (("get", ""), "must not be empty"),
        (("list", "--user", " x"), "must not be empty"),
        (("delete",), "--all"),
        (("delete", "f1", "--all"), "--all"),
        (("import", "/nowhere/x"), "/nowhere/x"),
        (("export", "/nowhere/x"), "/nowhere/x"),
        (("list", "--api-key", "a b"), "api_key"),
        (("list", "--base-url", "http://127.0.0.1:9"), "is `inferscale serve` running, and ready?"),
    ],
)
def test_a_mistake_exits_with_2_and_says_what_is_wrong(
    run: Run, capsysbinary: pytest.CaptureFixture[bytes], argv: tuple[str, ...], words: str
) -> None:
    assert run(*argv) == 2
    error = capsysbinary.readouterr().err.decode()
    assert words in " ".join(error.replace("│", " ").split())
    assert "Traceback" not in error


def test_all_facts_are_only_deleted_after_a_yes(run: Run, rows: Rows) -> None:
    rows("add", "one")
    assert run("delete", "--all", stdin=b"n\n") == 1
    assert len(rows("list")) == 1
    assert run("delete", "--all", stdin=b"y\n") == 0
    assert rows("list") == []
