"""Progress on a terminal and in a log."""

from __future__ import annotations

import io
import re
import threading

import pytest
from rich.console import Console

from inferscale_server.demo.progress import Progress, Running


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


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_silent_log_is_told_about_every_half_minute_that_it_goes_on() -> None:
    shown, clock = io.StringIO(), Clock()
    progress = Progress(Console(file=shown), clock)
    progress.stage("loading m (about a minute)")
    for clock.now_s in (10.0, 29.9, 30.0, 31.0, 59.0, 60.5):
        progress.still()
    progress.stage("the gate")
    clock.now_s = 80.0
    progress.still()
    progress.ready("ready")
    clock.now_s = 300.0
    progress.still()
    assert shown.getvalue().splitlines() == [
        "  0.0 s  loading m (about a minute)",
        " 30.0 s  still loading m",
        " 60.5 s  still loading m",
        " 60.5 s  the gate",
        " 80.0 s  ready",
    ]


def test_a_log_is_looked_after_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told, shown = Clock(), threading.Event(), io.StringIO()
    monkeypatch.setattr("inferscale_server.demo.progress.LOOK_S", 0.001)
    monkeypatch.setattr(shown, "flush", lambda: told.set() if "still" in shown.getvalue() else None, raising=False)
    with Progress(Console(file=shown), clock) as progress:
        progress.stage("loading")
        clock.now_s = 30.0
        assert told.wait(10)
    assert shown.getvalue() == "  0.0 s  loading\n 30.0 s  still loading\n"


def test_a_terminal_has_a_clock_that_runs_beside_the_stage() -> None:
    clock = Clock()
    stage = Running("loading [m]", 0.0, clock)
    seen = []
    for clock.now_s in (0.4, 60.0, 382.0):
        shown = io.StringIO()
        Console(file=shown, width=80).print(stage)
        seen.append(shown.getvalue().strip())
    assert seen == ["loading [m], 0 s", "loading [m], 60 s", "loading [m], 382 s"]


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
