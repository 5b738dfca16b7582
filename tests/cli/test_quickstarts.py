"""Each page begins its Python with a quickstart: a way in is changed to by a few lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
INTEGRATIONS = {"langchain.md", "llamaindex.md", "mem0.md", "mcp.md", "openai.md"}


def blocks(page: Path) -> list[str]:
    """The page's Python that is run as written."""
    return re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


PAGES = [page for page in sorted(DOCS.glob("*.md")) if blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_quickstart_of_each_page_is_under_ten_lines(page: Path) -> None:
    written = [line for line in blocks(page)[0].splitlines() if line.strip()]
    assert 0 < len(written) < 10


def test_every_integration_has_a_quickstart() -> None:
    assert {page.name for page in PAGES} >= INTEGRATIONS
