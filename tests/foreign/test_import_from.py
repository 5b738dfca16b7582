"""`inferscale memories import --from` against the real routes: what comes over, and what is said about the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.cli import main
from tests.cli.memory_server import memory_server


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with memory_server(tmp_path) as address:
        monkeypatch.setenv("INFERSCALE_BASE_URL", address)
        yield address


@pytest.fixture
def run(url: str) -> Callable[..., int]:
    def run(*argv: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["memories", "import", "--user", "alice", *argv])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    return run


def exported(folder: Path, value: Any) -> str:
    path = folder / "export.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


MEMORIES = [
    {"id": "0b6e3f3e-3bfa-4bb5-a35e-ee5dd6d3ed1e", "memory": "Rex is a dog", "user_id": "alice"},
    {"memory": "Tom is a cat", "user_id": "bob"},
    {"memory": "Tea is hot", "metadata": {"topic": "tea"}},
]


def test_a_users_memories_come_over_and_nobody_elses(
    run: Callable[..., int], url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(tmp_path, MEMORIES)
    assert run(file, "--from", "mem0") == 0
    assert capsys.readouterr().out == "2 imported, 0 duplicates, 0 failed, 1 left out (of other users)\n"
    with InferScaleClient(base_url=url) as client:
        facts = list(client.memories.list("alice"))
    assert [(fact.text, fact.metadata) for fact in facts] == [("Rex is a dog", {}), ("Tea is hot", {"topic": "tea"})]
    assert facts[0].id == "0b6e3f3e3bfa4bb5a35eee5dd6d3ed1e"


def test_the_same_file_can_be_sent_again_and_under_another_name(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = exported(tmp_path, MEMORIES)
    assert run(file, "--from", "mem0") == 0
    assert run(file, "--from", "mem0", "--from-user", "bob", "--json") == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told == {"imported": 1, "duplicates": 1, "failed": [], "left_out": {"of other users": 1}}


def test_what_fails_is_told_by_its_line_whoever_refuses_it(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ['"a"', "{", '{"text": "b", "timestamp": "yesterday"}', "", '"c"', json.dumps("x" * 8001)]
    assert run(exported(tmp_path, "\n".join(lines)), "--from", "jsonl") == 1
    told = capsys.readouterr()
    assert told.out == "2 imported, 0 duplicates, 3 failed\n"
    assert [line.split(":")[0] for line in told.err.splitlines()] == ["line 2", "line 3", "line 6"]


@pytest.mark.parametrize(
    ("system", "content", "told"),
    [
        ("mem0", '[\n{"memory": "x"},\n', "line 3: not JSON"),
        ("zep", "{}", "edges or facts"),
        ("letta", "", "not JSON"),
        ("jsonl", None, "No such file"),
    ],
)
def test_a_file_that_is_none_gives_one_line_and_imports_nothing(
    run: Callable[..., int],
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    system: str,
    content: str | None,
    told: str,
) -> None:
    file = str(tmp_path / "missing") if content is None else exported(tmp_path, content)
    assert run(file, "--from", system) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("inferscale: ") and told in line
    with InferScaleClient(base_url=url) as client:
        assert list(client.memories.list("alice")) == []


@pytest.mark.parametrize("argv", [("--from", "mem0"), ("x", "--from-user", "bob"), ("x", "--from", "other")])
def test_options_that_make_no_sense_are_refused(run: Callable[..., int], argv: tuple[str, ...]) -> None:
    assert run(*argv) == 2
