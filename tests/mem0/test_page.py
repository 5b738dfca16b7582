"""`docs/mem0.md` runs as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "mem0.md").read_text("utf-8")


def test_the_pages_python_runs_as_written(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    assert "http://127.0.0.1:8000" in code
    exec(compile(code.replace("http://127.0.0.1:8000", url), "mem0.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["My dog is called Bruno."] * 2
