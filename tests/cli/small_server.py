"""A real HTTP server with a handful of facts, for commands that talk to one. No model behind it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

FACT = {"id": "f1", "text": "Bruno is [old].", "speaker": "Alice", "timestamp": 0.0, "metadata": {}, "created_at": 0.0}
USED = {
    "mode": "kv",
    "reason": "asked",
    "facts": [{"id": "f1", "text": FACT["text"], "score": 0.5}],
    "injected_tokens": 9,
    "prefilled_tokens": 12,
    "timings_ms": {"ttft": 41.6},
}


class Handler(BaseHTTPRequestHandler):
    """Answers the routes that the commands use."""

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/v1/memories":
            self._json({"data": [FACT, FACT | {"id": "f2"}], "next_cursor": None, "has_more": False})
        elif path == "/v1/memories/f1":
            self._json(FACT)
        elif path == "/v1/inferscale/status":
            self._json({"model": "tiny", "encoding": {"queued": 0, "running": 0}})
        elif path == "/ready":
            self._json({})
        else:
            self._missing()

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/memories":
            self._json({"results": [_outcome(fact, at) for at, fact in enumerate(sent["facts"])]})
        elif self.path == "/v1/memories/search":
            self._json({"data": [FACT | {"score": 0.75}]})
        elif self.path == "/v1/chat/completions" and sent.get("stream"):
            self._stream()
        elif self.path == "/v1/chat/completions":
            mode = sent["inferscale"].get("memory", {}).get("mode", "kv")
            message = {"role": "assistant", "content": "I do not know." if mode == "off" else "Pickle, Bruno."}
            self._json({"choices": [{"index": 0, "message": message}], "inferscale": USED | {"mode": mode}})
        else:
            self._missing()

    def do_DELETE(self) -> None:
        if self.path.split("?")[0] == "/v1/memories/f1":
            self._json({"id": "f1", "deleted": True})
        else:
            self._missing()

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _stream(self) -> None:
        pieces = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in ("Bru", "no")]
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "inferscale": USED}
        events = [f"data: {json.dumps(event)}\n\n" for event in (*pieces, last)] + ["data: [DONE]\n\n"]
        self._send(200, "text/event-stream", "".join(events).encode())

    def _missing(self) -> None:
        error = {"message": "no such\nfact", "type": "invalid_request_error", "code": "not_found", "param": None}
        self._json({"error": error}, status=404)

    def _json(self, body: object, status: int = 200) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _outcome(fact: str | dict[str, str], at: int) -> dict[str, object]:
    text = fact if isinstance(fact, str) else fact["text"]
    return {"id": f"f{at}", "text": text, "status": "stored"} if text.strip() else {"text": text, "status": "failed"}


@contextmanager
def small_server() -> Iterator[str]:
    """Its address, for as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
