"""What the demo leaves behind: a page and a plot. Pure, apart from `write_plot`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from inferscale_server.demo.score import MODES, Answer, score
from inferscale_server.demo.ttft import TIMED_MODES, Row

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .3rem .8rem; border-bottom: 1px solid #ddd;
text-align: left; vertical-align: top } td.n { text-align: right } .right { color: #176f2c } .wrong { color: #a12020 }
details { color: #666 } img { max-width: 100% }
"""


def page(model: str, answers: Sequence[Answer], timings: Sequence[Row], complaints: Sequence[str]) -> str:
    """One HTML page that needs nothing but `ttft.png` beside it."""
    verdict = "".join(f"<p class=wrong>{escape(line)}</p>" for line in complaints) or "<p class=right>As it should.</p>"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>InferScale demo</title><style>{STYLE}</style>"
        f"<h1>InferScale demo</h1><p>Model: {escape(model)}. Each question was asked without memory, with the recalled "
        "facts as text, and with their KV injected.</p>"
        f"<h2>Score</h2>{_score_table(answers)}{verdict}"
        f"<h2>Time to first token</h2>{_timing_table(timings)}<img src=ttft.png alt='Time to first token by facts'>"
        f"<h2>Answers</h2>{_answer_table(answers)}</html>\n"
    )


def _score_table(answers: Sequence[Answer]) -> str:
    scores = [score(answers, mode) for mode in MODES]
    return _table(
        ("memory", "right", "asked", "tokens injected"),
        [(one.mode, one.right, one.asked, one.injected_tokens) for one in scores],
    )


def _timing_table(timings: Sequence[Row]) -> str:
    return _table(
        ("facts", "memory", "median ms", "tokens injected", "tokens computed"),
        [(row.k, row.mode, f"{row.ttft_ms:.0f}", row.injected_tokens, row.prefilled_tokens) for row in timings],
    )


def _table(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}" for name in heads)
    body = "".join("<tr>" + "".join(f"<td class=n>{escape(str(cell))}" for cell in line) for line in lines)
    return f"<table><tr>{head}{body}</table>"


def _answer_table(answers: Sequence[Answer]) -> str:
    return "<table><tr><th>question<th>memory<th>answer" + "".join(map(_answer_row, answers)) + "</table>"


def _answer_row(answer: Answer) -> str:
    verdict = "right" if answer.right else "wrong"
    facts = "".join(f"<li>{escape(fact)}" for fact in answer.facts)
    shown = f"<details><summary>{len(answer.facts)} facts</summary><ol>{facts}</ol></details>" if facts else ""
    return (
        f"<tr><td>{escape(answer.question.user)}: {escape(answer.question.text)}<td>{escape(answer.served)}"
        f"<td><span class={verdict}>{escape(answer.text)}</span>{shown}"
    )


def write_plot(timings: Sequence[Row], file: Path) -> None:
    """A line a mode: facts recalled against median milliseconds to the first token."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for mode in TIMED_MODES:
        line = [row for row in timings if row.mode == mode]
        axes.plot([row.k for row in line], [row.ttft_ms for row in line], marker="o", label=mode)
    axes.set(xlabel="facts recalled", ylabel="time to first token, ms (median)", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
