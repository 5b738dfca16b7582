"""Lines of facts: rendered once, as they read now, and not kept longer than their facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferscale_server import fact_lines
from inferscale_server.fact_lines import FactLines
from inferscale_server.types import Owner
from inferscale_server.wording import Wording

from .builders import ALICE, BOB, fact
from .engines import WordTokenizer


class CountingTokenizer(WordTokenizer):
    """Remembers which lines it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __call__(self, line: str, owner: Owner | None = None) -> tuple[int, ...]:
        self.asked.append(line)
        return super().__call__(line, owner)


@pytest.fixture
def tokenize() -> CountingTokenizer:
    return CountingTokenizer()


@pytest.fixture
def lines(tokenize: CountingTokenizer) -> FactLines:
    return FactLines(tokenize, Wording())  # type: ignore[arg-type]


def test_a_fact_is_rendered_once(lines: FactLines, tokenize: CountingTokenizer) -> None:
    facts = [fact(1), fact(2)]
    first, second = lines.of(ALICE, facts), lines.of(ALICE, list(reversed(facts)))
    assert first == list(reversed(second)) and len(tokenize.asked) == 2
    assert [line.token_ids for line in first] == [tokenize(Wording().line(each.text)) for each in facts]


def test_a_rewritten_fact_stands_as_it_reads_now(lines: FactLines, tokenize: CountingTokenizer) -> None:
    old = fact(1)
    lines.of(ALICE, [old])
    (line,) = lines.of(ALICE, [replace(old, text="quite another text")])
    assert line.token_ids == tokenize("- quite another text") and len(lines) == 1


def test_what_was_deleted_is_not_kept(lines: FactLines) -> None:
    lines.of(ALICE, [fact(1), fact(2), fact(3)])
    lines.of(BOB, [fact(1, owner=BOB)])
    lines.forget_facts(ALICE, [fact(1).id, "never found"])
    assert len(lines) == 3
    lines.forget_owner(ALICE)
    assert len(lines) == 1


def test_an_owner_gets_no_line_of_another_though_the_ids_are_the_same(lines: FactLines) -> None:
    bobs = replace(fact(1), owner=BOB)
    lines.of(ALICE, [fact(1)])
    (line,) = lines.of(BOB, [bobs])
    assert line.fact is bobs and line.key.owner == BOB


def test_the_owner_who_asked_longest_ago_makes_room(
    lines: FactLines, tokenize: CountingTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_lines, "KEPT_LINES", 4)
    bobs = [fact(number, owner=BOB) for number in (1, 2)]
    alices, carols = [fact(1), fact(2)], [fact(1, owner=Owner("local", "carol"))]
    for owner, facts in ((ALICE, alices), (BOB, bobs), (ALICE, alices), (carols[0].owner, carols)):
        lines.of(owner, facts)
    before = len(tokenize.asked)
    lines.of(ALICE, alices)
    assert len(tokenize.asked) == before and len(lines) == 3
    lines.of(BOB, bobs)
    assert len(tokenize.asked) == before + 2
