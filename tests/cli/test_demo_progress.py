"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import re

from rich.console import Console

from inferscale_server.demo.progress import Progress


def lines_of(told: list[str]) -> list[str]:
    shown = io.StringIO()
    with Progress(Console(file=shown, width=40)) as progress:
        for text in told:
            progress.tell(text)
    return shown.getvalue().splitlines()


def test_a_log_gets_one_line_a_stage_with_its_seconds() -> None:
    lines = lines_of(["starting the server: 1 s", "starting the server: 2 s", "encoding facts: 9 to go"])
    assert [re.sub(r"^ *\d+\.\d s  ", "", line) for line in lines] == [
        "starting the server: 1 s",
        "encoding facts: 9 to go",
    ]
    assert all(re.match(r" *\d+\.\d s  ", line) for line in lines)


def test_a_log_gets_one_line_for_all_of_a_count() -> None:
    lines = lines_of([f"asking {number} of 12: anew" for number in range(1, 13)] + ["stage 2", "stage 3"])
    assert [line.split(" s  ")[1] for line in lines] == ["asking 1 of 12: anew", "stage 2", "stage 3"]


def test_a_long_line_is_not_wrapped_and_brackets_stay() -> None:
    assert lines_of(["x [red] " * 20])[0].endswith("x [red] " * 20)


def test_a_terminal_shows_stages_for_good_and_happenings_in_passing() -> None:
    shown = io.StringIO()
    with Progress(Console(file=shown, force_terminal=True, width=80)) as progress:
        progress.stage("loading")
        progress.tell("one")
        progress.ready("ready")
        progress.say("keys read again")
    assert re.search(r"\d s  ready\n.*\d s  keys read again\n$", shown.getvalue(), re.DOTALL)
    assert re.search(r"\d s  loading\n", shown.getvalue()) and re.search(r"\d s  ready\n", shown.getvalue())
    assert not re.search(r"\d s  one", shown.getvalue())
    assert shown.getvalue().count("\x1b[?25l") == shown.getvalue().count("\x1b[?25h")
