"""The examples of the page run as they stand, against a server on a real port."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from .scripted import KEY, ScriptedServer

PAGE = Path(__file__).parents[2] / "docs" / "llamaindex.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def port(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """The scripted server behind a socket, named in the environment."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            request = httpx.Request("POST", f"http://localhost{self.path}", content=content)
            response = server.handle(request)
            self.send_response(response.status_code)
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        monkeypatch.setenv("INFERSCALE_BASE_URL", f"http://127.0.0.1:{listening.server_port}")
        monkeypatch.setenv("INFERSCALE_API_KEY", KEY)
        yield server
        written()
        listening.shutdown()


def written() -> None:
    """Wait for the background writes, as leaving Python does."""
    for thread in threading.enumerate():
        if thread.name == "inferscale-memory":
            thread.join()


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(port: ScriptedServer, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    port.facts["alice"] = ["Alice's dog is called Bruno."]
    exec(compile(example, str(PAGE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()
    assert KEY not in str([seen.body for seen in port.seen])


def test_the_quickstart_is_remembered_and_answered_with_what_was_there(
    port: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    port.facts["alice"] = ["Alice lives in Oslo."]
    exec(compile(EXAMPLES[0], str(PAGE), "exec"), {"__name__": "__main__"})
    written()
    assert capsys.readouterr().out.strip() == "Alice lives in Oslo."
    assert port.facts["alice"] == ["Alice lives in Oslo.", "Alice's dog is called Bruno."]
