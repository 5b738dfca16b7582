"""`docs/mem0.md` runs as written."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import mem0_inferscale
import pytest

from tests.openai.chat_app import ChatApp

PAGE = (Path(__file__).parents[2] / "docs" / "mem0.md").read_text("utf-8")


def test_the_pages_python_runs_as_written(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    assert "http://127.0.0.1:8000" in code
    exec(compile(code.replace("http://127.0.0.1:8000", url), "mem0.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["Alice's dog is called Bruno."] * 2


def test_the_example_for_a_larger_model_runs_as_written(
    url: str, chats: ChatApp, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    chats.model = lambda body, recalled: '{"memory": [{"text": "User has a dog called Bruno"}]}'
    exec(compile(code.replace("http://127.0.0.1:8000", url), "mem0.md", "exec"), {})
    assert capsys.readouterr().out == "ADD User has a dog called Bruno\n"


def test_the_packages_own_example_runs_as_written(url: str) -> None:
    [code] = re.findall(r"\n\n((?:    .*\n|\n)+)", mem0_inferscale.__doc__ or "")
    assert "http://127.0.0.1:8000" in code
    names: dict[str, Any] = {}
    exec(compile(dedent(code).replace("http://127.0.0.1:8000", url), "mem0_inferscale", "exec"), names)
    names["memory"].add("My dog is called Bruno.", user_id="alice", infer=False)
    [hit] = names["memory"].search("My dog is called Bruno.", filters={"user_id": "alice"})["results"]
    assert hit["memory"] == "My dog is called Bruno."
