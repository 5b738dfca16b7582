"""The page says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import langchain_inferscale
import pytest

from .whole_server import whole_server

PAGE = (Path(__file__).parents[2] / "docs" / "langchain.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_all_code_of_the_page_runs_as_written(
    memory_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with whole_server(memory_url) as url:
        monkeypatch.setenv("INFERSCALE_BASE_URL", url)
        exec(compile("\n".join(BLOCKS), "langchain.md", "exec", dont_inherit=True), {"__name__": "page"})
    out = capsys.readouterr().out
    for said in ("canary-of-alice hears you kv", "bob canary-of-bob", "5 tokens of memory", "name='Which pet", "Oslo"):
        assert said in out
    assert "Alice's dog is called Bruno." in out and "'Ann takes her coffee black.'" in out
    assert "My sister Ann lives in Bergen.\n" in out


def test_every_class_that_the_page_names_is_exported() -> None:
    named = set(re.findall(r"\bInferScale[A-Z]\w+", PAGE)) - {"InferScaleClient"}
    assert named and named <= set(langchain_inferscale.__all__)
