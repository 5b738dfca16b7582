"""`docs/extraction.md` says what is chosen, and its first example prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.config import EXTRACTORS
from inferscale_server.extraction.contradiction import relation_of
from tests.cli.memory_server import memory_server
from tests.extraction.script import by_default, with_defaults
from tests.openai.chat_app import ChatApp

PAGE = (Path(__file__).parents[2] / "docs" / "extraction.md").read_text("utf-8")


def test_every_extractor_has_its_row() -> None:
    [table] = re.findall(r"^\| `--extractor` .*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    listed = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert [name for name in listed if not name.startswith("openai:")] == list(EXTRACTORS)


def test_the_rules_do_what_the_page_shows() -> None:
    [table] = re.findall(r"^\| stored \| new .*\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    becomes = {"`duplicate`": "same", "`superseded`": "replaces"}
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    said = [(old, one.strip(), becomes.get(told, "new")) for old, new, told in rows for one in new.split(";")]
    assert len(said) > len(rows) >= 5
    assert [relation_of(new, old) for old, new, _ in said] == [relation for _, _, relation in said]


def test_with_the_defaults_the_first_example_prints_what_the_page_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    [told] = re.findall(r"With the embedded model this prints `(.+)`", PAGE)
    with memory_server(tmp_path, by_default) as url:
        exec(compile(code.replace("http://127.0.0.1:8000", url), "extraction.md", "exec"), {})
    assert capsys.readouterr().out.strip() == told


def test_the_turn_of_the_second_example_is_queued_and_then_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported, code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    code = imported.splitlines()[0] + "\n" + code
    with memory_server(tmp_path, lambda services: ChatApp().over(with_defaults(services))) as url:
        exec(compile(code.replace("http://127.0.0.1:8000", url), "extraction.md", "exec"), {})
        with InferScaleClient(base_url=url) as client:
            assert [fact.text for fact in client.memories.list("alice")] == ["My dog is called Bruno."]
    assert capsys.readouterr().out.strip() == "queued"
