"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferscale_server import limits
from inferscale_server.cli import app
from tests.cli.small_server import small_server

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


def blocks(page: str, language: str) -> str:
    """All code of one language in a page, in order."""
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL))


def test_every_limit_is_listed_with_its_value() -> None:
    page = (ROOT / "docs" / "limits.md").read_text("utf-8")
    listed = {name: int(value) for name, value in re.findall(r"^\| `([A-Z_]+)` \| (\d+) \|", page, re.MULTILINE)}
    assert listed == {name: value for name, value in vars(limits).items() if name.isupper()}


def test_the_quickstart_runs_as_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with small_server() as url:
        monkeypatch.setenv("INFERSCALE_BASE_URL", url)
        exec(compile(blocks(QUICKSTART, "python"), "quickstart.md", "exec"), {})
    out = capsys.readouterr().out
    assert "9 tokens came as KV, 12 were computed" in out
    assert "0.5 Bruno is [old]." in out


def test_the_readmes_example_runs_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    with small_server() as url:
        code = blocks(README, "python")
        assert "http://127.0.0.1:8000" in code
        exec(compile(code.replace("http://127.0.0.1:8000", url), "README.md", "exec"), {})
    assert "9 ['Bruno is [old].']" in capsys.readouterr().out


@pytest.mark.parametrize("command", re.findall(r"^\.venv/bin/inferscale (.+)$", QUICKSTART, re.MULTILINE))
def test_every_command_in_the_quickstart_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = re.match(r"memories \w+|\w+", command)
    assert words is not None
    with pytest.raises(SystemExit) as ended:
        app.main([*words[0].split(), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    flags = re.findall(r" (--[a-z][a-z-]*)", command.split(" -- ")[0])
    assert [flag for flag in flags if flag not in shown] == []


def test_every_target_that_the_pages_name_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README + QUICKSTART, re.MULTILINE))
    assert named and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


def test_every_merge_is_tested_with_the_newest_versions_and_with_the_oldest() -> None:
    run = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert {"make test", "make test-oldest"} <= set(run)
    oldest = (ROOT / "scripts" / "check_oldest.sh").read_text("utf-8")
    assert "floor langchain-core" in oldest and "floor llama-index-core" in oldest
