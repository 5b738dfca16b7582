"""`docs/cli.md` says what the commands do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from inferscale_server.cli import main
from inferscale_server.cli.app import app
from tests.cli.memory_server import memory_server

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")


def test_the_pages_commands_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [block] = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    with memory_server(tmp_path) as url:
        monkeypatch.setenv("INFERSCALE_BASE_URL", url)
        for line in block.splitlines():
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(line)[1:])
            assert ended.value.code == 0, line
    *_, deleted, left = capsys.readouterr().out.splitlines()
    assert deleted == "deleted 1 fact"
    assert '"session_id":"monday"' in left and '"timestamp":"2025-05-08T13:56:00Z"' in left


def test_the_page_names_every_command() -> None:
    names = [group.name for group in app.registered_groups] + [command.name for command in app.registered_commands]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
