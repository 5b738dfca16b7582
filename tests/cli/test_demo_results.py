"""Scores, medians and the page, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from inferscale_server.demo import report, ttft
from inferscale_server.demo.conversations import Question
from inferscale_server.demo.score import MODES, Answer, complaints, score
from inferscale_server.demo.ttft import Row, Sample

QUESTION = Question("mara", "What is <it>?", ("pickle",))


def answers(off: int = 0, text: int = 12, kv: int = 12, served_kv: str = "kv", injected: int = 90) -> list[Answer]:
    """Twelve answers a mode, so many of them right."""
    served = {"off": "off", "text": "text", "kv": served_kv}
    right = {"off": off, "text": text, "kv": kv}
    return [
        Answer(QUESTION, mode, served[mode], "Pickle." if at < right[mode] else "I do not know.", ("Pickle & co",),
               injected if mode == "kv" else 0)
        for mode in MODES
        for at in range(12)
    ]  # fmt: skip


def test_right_answers_are_counted_per_mode() -> None:
    counted = [score(answers(off=0, text=9, kv=8), mode) for mode in MODES]
    assert [(one.right, one.asked) for one in counted] == [(0, 12), (9, 12), (8, 12)]
    assert [one.injected_tokens for one in counted] == [0, 0, 12 * 90]


def test_a_run_that_shows_what_it_should_has_no_complaint() -> None:
    assert complaints(answers()) == []
    assert complaints(answers(text=8, kv=7)) == []


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (answers(off=1), "1 questions were answered without memory"),
        (answers(text=7, kv=7), "only 7 of 12"),
        (answers(text=10, kv=8), "8 answers are right with memory as KV, but 10 as text"),
        (answers(served_kv="text"), "asked for kv but served text"),
        (answers(injected=0), "no KV was injected"),
    ],
)
def test_each_shortfall_is_named(run: list[Answer], complaint: str) -> None:
    assert any(complaint in line for line in complaints(run))


def test_rows_are_medians_with_text_before_kv() -> None:
    samples = [Sample("kv", 10, ms, 300, 20) for ms in (30.0, 10.0, 20.0)]
    samples += [Sample("text", 10, ms, 0, 320) for ms in (90.0, 70.0)]
    samples += [Sample("kv", 5, 11.0, 150, 20)]
    assert ttft.rows(samples) == [
        Row("kv", 5, 11.0, 150, 20),
        Row("text", 10, 80.0, 0, 320),
        Row("kv", 10, 20.0, 300, 20),
    ]


def test_timed_questions_come_from_every_memory() -> None:
    questions = [Question(user, str(at), ("x",)) for user in ("mara", "tomas") for at in range(6)]
    taken = ttft.spread(questions, 5)
    assert len(set(taken)) == 5
    assert {question.user for question in taken} == {"mara", "tomas"}
    assert ttft.spread(questions[:2], 5) == questions[:2]


def test_the_page_shows_everything_and_runs_nothing() -> None:
    made = report.page("a<b", answers(kv=0), [Row("kv", 5, 12.6, 150, 20)], ["too <few>"])
    assert "<td class=n>13" in made
    assert "too &lt;few&gt;" in made and "a&lt;b" in made and "What is &lt;it&gt;?" in made
    assert "Pickle &amp; co" in made
    assert "<script" not in made and "<few>" not in made


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    report.write_plot([Row("text", 5, 80.0, 0, 320), Row("kv", 5, 20.0, 300, 20)], tmp_path / "ttft.png")
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")
