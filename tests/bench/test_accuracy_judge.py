"""The judge, against a scripted endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from inferscale_server.bench.accuracy.case import Case
from inferscale_server.bench.accuracy.judge import Judge
from inferscale_server.errors import Unavailable

CASE = Case("a/1", "What is the dog called?", "Pickle", "single-hop")


class Script:
    """What the endpoint says next, and what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.says: object = "CORRECT"
        self.status = 200
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
            self.send_response(state.status if self.path == "/v1/chat/completions" else 404)
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
    [("CORRECT", True), ("WRONG", False), ("It is not WRONG, so CORRECT.", True), ("CORRECT? No: WRONG", False)],
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


@pytest.mark.parametrize("say", ["Perhaps.", "INCORRECT", None])
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
        Judge(script.url, "m").finds_right(CASE, "Pickle")
