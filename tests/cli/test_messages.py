"""`inferscale memories add --messages`: a conversation from a file or stdin, with a scripted model and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI

from inferscale_server.edge.services import Services
from tests.cli.memory_server import memory_server
from tests.cli.test_memories import Rows, Run
from tests.cli.test_memories import rows as rows
from tests.cli.test_memories import run as run
from tests.cli.test_memories import user as user
from tests.edge.conftest import guarded
from tests.extraction.script import Script, assistant, extraction, facts, script
from tests.extraction.script import user as said

TALK = [said("I hiked yesterday."), assistant("How was it?"), said("My dog Bruno came along.")]


@pytest.fixture(scope="module")
def model() -> Script:
    return script()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, model: Script) -> Iterator[str]:
    def app(services: Services) -> FastAPI:
        return guarded(replace(services, extraction=extraction(services.memory, model)))

    with memory_server(tmp_path_factory.mktemp("store"), app) as address:
        yield address


@pytest.mark.parametrize(
    "written",
    [json.dumps(TALK), json.dumps(TALK, indent=2), "\n".join(json.dumps(one) for one in TALK)],
    ids=["array", "indented", "lines"],
)
def test_messages_are_kept_as_they_are_without_a_model(rows: Rows, tmp_path: Path, written: str) -> None:
    path = tmp_path / "talk.json"
    path.write_text(written)
    added = rows("add", "--messages", str(path), "--no-infer")
    assert [one["text"] for one in added] == [one["content"] for one in TALK]
    assert rows("add", "--messages", "-", "--no-infer", stdin=written.encode())[0]["status"] == "duplicate"


def test_a_model_makes_facts_of_messages(rows: Rows, model: Script) -> None:
    model(facts("User hiked yesterday."), facts("User's dog is called Bruno."))
    added = rows("add", "--messages", "-", "--time", "2023-05-08T13:56:00Z", stdin=json.dumps(TALK).encode())
    assert [one["text"] for one in added] == ["User hiked yesterday (2023-05-07).", "User's dog is called Bruno."]
    assert not model.answers


def test_what_a_model_cannot_read_is_told_and_ends_with_1(
    run: Run, model: Script, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    model("no", "no")
    assert run("add", "--messages", "-", "--infer", stdin=json.dumps(TALK[0]).encode()) == 1
    assert b"the answer is no JSON" in capsysbinary.readouterr().out


@pytest.mark.parametrize(
    ("argv", "stdin", "words"),
    [
        (("x", "--infer"), "", "need --messages"),
        (("--no-infer",), "x", "need --messages"),
        (("x", "--messages", "-"), "[]", "takes no TEXT"),
        (("--messages", "-", "--speaker", "Ann"), "[]", "no --speaker"),
        (("--messages", "-"), "", "no message in it"),
        (("--messages", "-"), "[]", "no message in it"),
        (("--messages", "-"), '{"role": "user"}\n{"role"', "line 2: not JSON"),
        (("--messages", "-"), '["hello"]', "message 1: must be an object"),
        (("--messages", "-"), '{"role": "user", "content": "a"}\n7', "line 2: must be an object"),
        (("--messages", "/nowhere/x"), "", "/nowhere/x: No such file"),
        (("--messages", "-", "--no-infer"), '[{"content": "a"}]', "role"),
    ],
)
def test_a_mistake_exits_with_2_and_stores_nothing(
    run: Run, rows: Rows, capsysbinary: pytest.CaptureFixture[bytes], argv: tuple[str, ...], stdin: str, words: str
) -> None:
    assert run("add", *argv, stdin=stdin.encode()) == 2
    assert words in " ".join(capsysbinary.readouterr().err.decode().replace("│", " ").split())
    assert rows("list") == []


def test_text_that_is_not_utf8_is_a_mistake(
    run: Run, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(b"\xff\xfe")
    assert run("add", "--messages", str(path)) == 2
    assert b"UTF-8" in capsysbinary.readouterr().err  # one word: where the line is broken depends on the path
