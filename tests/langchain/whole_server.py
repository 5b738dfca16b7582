"""A server behind a port for code that finds it by its address: scripted chats, and the real memory routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx

from .scripted_engine import ScriptedEngine


@contextmanager
def whole_server(memory_url: str) -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    engine = ScriptedEngine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def do_PATCH(self) -> None:
            self._pass_on()

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
            request = httpx.Request(self.command, memory_url + self.path, headers=kept, content=body)
            if self.path == "/v1/chat/completions":
                answer = engine.answer(request)
            else:
                with httpx.Client() as client:
                    answer = client.send(request)
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
