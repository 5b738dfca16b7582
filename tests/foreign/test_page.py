"""`docs/migrate.md` shows what is there, and its example runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from inferscale_server.cli import main
from inferscale_server.cli.migration import READERS
from tests.cli.memory_server import memory_server

PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text("utf-8")


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
