"""The pages lead to one another: every link leads somewhere, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
README = ROOT / "README.md"


def links(page: Path) -> list[str]:
    """Where the page leads, other sites left out."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The names that the page's headings have."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_index_leads_to_every_page() -> None:
    linked = {link.partition("#")[0] for link in links(ROOT / "docs" / "index.md")}
    assert {page.name for page in PAGES} - {"index.md"} <= linked


def test_no_page_names_another_by_its_path_alone() -> None:
    assert [page.name for page in PAGES if re.search(r"`docs/[\w-]+\.md`", page.read_text("utf-8"))] == []


def test_every_file_that_the_structure_names_is_there() -> None:
    folders = ("server", "inferscale_sdk", "integrations", "bench")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "structure.md").read_text("utf-8")))
    assert len(named) > 60
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []
