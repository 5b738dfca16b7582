"""The page about the promises names tests that exist, and every test that is named after a promise."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
NAMED = set(re.findall(r"`(tests/\w+/\w+\.py)::(test_\w+)`", PAGE))
COVERED = set(re.findall(r"^\| ([CRS]\d+) \|", PAGE, re.MULTILINE))
PROMISES = {f"C{n}" for n in range(1, 7)} | {f"R{n}" for n in range(1, 10)} | {f"S{n}" for n in range(1, 14)}


def names_in(file: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", (ROOT / file).read_text("utf-8"), re.MULTILINE))


def test_every_test_on_the_page_exists() -> None:
    assert len(NAMED) > 30
    assert [(file, name) for file, name in sorted(NAMED) if name not in names_in(file)] == []


def test_every_promise_has_a_row() -> None:
    without = PROMISES - COVERED
    assert without == set()


def test_a_test_that_is_named_after_a_promise_stands_in_its_row() -> None:
    for file, name in NAMED:
        promise = re.match(r"test_([CRScrs]\d+)_", name)
        if promise:
            row = next(line for line in PAGE.splitlines() if f"`{file}::{name}`" in line)
            assert row.startswith(f"| {promise[1].upper()} |")
