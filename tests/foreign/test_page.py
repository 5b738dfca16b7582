"""`docs/migrate.md` shows what is there, and its example runs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from mem0 import Memory
from mem0_inferscale import memory_config

from inferscale_server.cli import main
from inferscale_server.cli.migration import READERS
from inferscale_server.foreign import mem0, zep
from inferscale_server.foreign.record import Record
from tests.cli.memory_server import memory_server
from tests.openai.chat_app import MODEL, ChatApp

PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text("utf-8")


FETCHING_MEM0, FETCHING_ZEP = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)


@dataclass(frozen=True)
class Edge:
    """As Zep's client has them, as far as it matters here."""

    fact: str
    valid_at: datetime

    def dict(self) -> dict[str, Any]:
        return asdict(self)


def test_what_the_page_fetches_from_mem0_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        memory_server(tmp_path, ChatApp().over) as url,
        Memory.from_config(memory_config(url, model=MODEL, history_db_path=":memory:")) as memory,
    ):
        memory.add("Alice likes tea.", user_id="alice", infer=False)
        exec(compile(FETCHING_MEM0, "migrate.md", "exec"), {"json": json, "memory": memory})
    [record] = mem0.read(Path("mem0.json"))
    assert isinstance(record, Record) and (record.user, record.fields["text"]) == ("alice", "Alice likes tea.")


def test_what_the_page_fetches_from_zep_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    edges = [Edge("Ann manages Bob", datetime(2024, 5, 1, tzinfo=UTC))]
    exec(compile(FETCHING_ZEP, "migrate.md", "exec"), {"json": json, "edges": edges})
    moment = {"timestamp": "2024-05-01 00:00:00+00:00"}
    assert list(zep.read(Path("zep.json"))) == [Record(1, None, {"text": "Ann manages Bob", **moment})]


def test_every_system_has_its_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [system.value for system in READERS]


def test_the_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = re.findall(r"```sh\n(.*?)\n```", PAGE, re.DOTALL)
    [told] = re.findall(r"^`(\d+ imported.*)`$", PAGE, re.MULTILINE)
    written, command = block.split("\n")
    monkeypatch.chdir(tmp_path)
    Path("alice.jsonl").write_text("\n".join(shlex.split(written.split(" > ")[0])[2:]))
    with memory_server(tmp_path) as url:
        monkeypatch.setenv("INFERSCALE_BASE_URL", url)
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[1:])
    assert (ended.value.code, capsys.readouterr().out.strip()) == (0, told)
