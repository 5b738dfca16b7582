"""`docs/extraction.md` says what is chosen, and its first example prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferscale_server.config import EXTRACTORS
from tests.cli.memory_server import memory_server
from tests.extraction.script import by_default

PAGE = (Path(__file__).parents[2] / "docs" / "extraction.md").read_text("utf-8")


def test_every_extractor_has_its_row() -> None:
    [table] = re.findall(r"^\| `--extractor` .*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    listed = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert [name for name in listed if not name.startswith("openai:")] == list(EXTRACTORS)


def test_with_the_defaults_the_first_example_prints_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    [told] = re.findall(r"With the embedded model this prints `(.+)`", PAGE)
    with memory_server(tmp_path, by_default) as url:
        exec(compile(code.replace("http://127.0.0.1:8000", url), "extraction.md", "exec"), {})
    assert capsys.readouterr().out.strip() == told
