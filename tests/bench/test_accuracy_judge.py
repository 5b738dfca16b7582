"""The judge, against a scripted endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from inferscale_server.bench.accuracy.case import Case, Haystack
from inferscale_server.bench.accuracy.cell import cells, trios
from inferscale_server.bench.accuracy.judge import TRIES, Judge
from inferscale_server.bench.accuracy.ledger import Ledger
from inferscale_server.bench.accuracy.measure import Measuring, Progress
from inferscale_server.bench.accuracy.verdicts import judge_missing
from inferscale_server.errors import ConfigError, Unavailable
from tests.bench.ten_questions import CASES, TEN, TenQuestions

QUIET = Progress(lambda text: None, lambda count: None)
CASE = Case("a/1", "What is the dog called?", "Pickle", "single-hop")


class Script:
    """What the endpoint says next, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.says: object = "CORRECT"
        self.status = 200
        self.busy: list[tuple[int, dict[str, str]]] = []  # statuses and headers of the next answers
        self.slept: list[float] = []
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str | None] = []


@pytest.fixture
def script() -> Iterator[Script]:
    state = Script()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            state.headers.append(self.headers["authorization"])
            body = json.dumps({"choices": [{"message": {"content": state.says}}]}).encode()
            status, headers = state.busy.pop(0) if state.busy else (state.status, {})
            self.send_response(status if self.path == "/v1/chat/completions" else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/v1/"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("CORRECT", True),
        ("WRONG", False),
        ("It is not WRONG, so CORRECT.", True),
        ("CORRECT? No: WRONG", False),
        ("The answer is NOT CORRECT.", False),
        ("**Correct.**", True),
        ("wrong\n", False),
        ("WRONG, the correct answer is Pickle.", False),
    ],
)
def test_the_last_verdict_counts(script: Script, said: str, right: bool) -> None:
    script.says = said
    assert Judge(script.url, "m").finds_right(CASE, "The dog is Pickle.") is right


def test_the_judge_sees_question_gold_and_answer_and_is_asked_without_chance(script: Script) -> None:
    Judge(script.url, "m", "secret").finds_right(CASE, "It is Pickle.")
    [asked] = script.asked
    prompt = asked["messages"][0]["content"]
    assert all(part in prompt for part in (CASE.question, CASE.answer, "It is Pickle."))
    assert (asked["model"], asked["temperature"], script.headers) == ("m", 0, ["Bearer secret"])


@pytest.mark.parametrize("say", ["Perhaps.", "", "INCORRECT", "It says the correct name.", None])
def test_a_judge_that_says_neither_is_no_verdict(script: Script, say: object) -> None:
    script.says = say
    with pytest.raises(Unavailable, match="neither CORRECT nor WRONG"):
        Judge(script.url, "m").finds_right(CASE, "Pickle")


def _unreachable(script: Script) -> None:
    script.url = "http://127.0.0.1:9/v1"


def _failing(script: Script) -> None:
    script.status = 500


@pytest.mark.parametrize("broken", [_unreachable, _failing])
def test_a_judge_that_does_not_answer_is_named(script: Script, broken: Callable[[Script], None]) -> None:
    broken(script)
    with pytest.raises(Unavailable, match="the judge at http"):
        Judge(script.url, "m", sleep=script.slept.append).finds_right(CASE, "Pickle")
    assert len(script.slept) == TRIES - 1


def test_a_judge_that_is_busy_is_asked_again_after_as_long_as_it_says(script: Script) -> None:
    script.busy = [(429, {"retry-after": "7"}), (503, {})]
    assert Judge(script.url, "m", sleep=script.slept.append).finds_right(CASE, "Pickle")
    assert script.slept[0] == 7 and 0 < script.slept[1] <= 1 and len(script.asked) == 3


@pytest.mark.parametrize("busy", [(429, {"retry-after": "3600"}), (401, {}), (404, {})])
def test_what_will_not_pass_soon_is_not_waited_for(script: Script, busy: tuple[int, dict[str, str]]) -> None:
    script.busy = [busy]
    with pytest.raises(Unavailable, match="the judge at http"):
        Judge(script.url, "m", sleep=script.slept.append).finds_right(CASE, "Pickle")
    assert script.slept == [] and len(script.asked) == 1


def answered(folder: Path) -> Ledger:
    """Ten questions that were answered, and not judged yet."""
    ledger = Ledger(folder, {})
    Measuring(TenQuestions(answers=True), "primer", ledger).run([TEN], (20,), 1, QUIET)
    return ledger


def test_a_judge_that_fails_costs_no_row_and_is_asked_again_by_the_next_run(script: Script, tmp_path: Path) -> None:
    ledger = answered(tmp_path)
    judge = Judge(script.url, "m", sleep=script.slept.append)
    script.busy = [(400, {})]
    [failed] = judge_missing(judge, ledger, [TEN], 1)
    assert "the judge at http" in failed.reason and len(script.asked) == 30
    again = Ledger(tmp_path, {})
    assert len(trios(again)) == 10
    [whole, *_] = cells(trios(again), 0)
    assert whole.questions == 10 and whole.right == {"off": 1.0, "text": 1.0, "kv": 1.0}
    assert list(judge_missing(judge, again, [TEN], 1)) == [] and len(script.asked) == 31
    assert all(row.right for row in Ledger(tmp_path, {}).rows)


def test_a_judge_can_be_named_later_and_left_out_again_but_not_replaced(tmp_path: Path) -> None:
    Ledger(tmp_path, {"judge": None})
    assert [Ledger(tmp_path, {"judge": judge}).settings["judge"] for judge in ("m", None, "m")] == ["m"] * 3
    with pytest.raises(ConfigError, match="made with judge = 'm', not 'n'"):
        Ledger(tmp_path, {"judge": "n"})


def test_what_is_judged_is_not_judged_again_and_nobody_judges_what_is_not_asked(script: Script, tmp_path: Path) -> None:
    ledger, judge = answered(tmp_path), Judge(script.url, "m")
    assert list(judge_missing(judge, ledger, [Haystack("ten", TEN.facts, CASES[:2])], 4)) == []
    assert len(script.asked) == 6
    assert list(judge_missing(judge, ledger, [TEN], 4)) == [] and len(script.asked) == 30
