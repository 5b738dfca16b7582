"""`docs/sdk.md` runs as written, against the real routes; only the model is a function."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient, Memories
from inferscale_sdk import _errors as errors
from tests.cli.memory_server import memory_server
from tests.openai.chat_app import ChatApp

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text("utf-8")


def test_the_pages_python_runs_as_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    assert "http://127.0.0.1:8000" in code
    with memory_server(tmp_path, ChatApp().over) as url:
        exec(compile(code.replace("http://127.0.0.1:8000", url), "sdk.md", "exec"), {})
    out = capsys.readouterr().out
    assert "['added', 'updated']" in out
    assert "{'topic': 'car', 'level': 4}" in out
    assert "404 " in out
    assert out.splitlines()[-1] == "text"


def test_the_page_names_every_method_and_every_error() -> None:
    methods = [name for name, member in vars(Memories).items() if inspect.isfunction(member) and name[0] != "_"]
    options = [name for name in inspect.signature(InferScaleClient).parameters]
    kinds = [name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert [name for name in (*methods, *options, *kinds) if name not in PAGE] == []
