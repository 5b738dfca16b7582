"""A real HTTP server that behaves like InferScale towards the benchmarks. No model behind it.

Facts are encoded one a status call, contexts on their second use; every question recalls facts of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bench import ten_questions

TOKENS_A_FACT = 10
FRAME_TOKENS = 40
SECONDS_A_TOKEN = 4e-6
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class SmallServer:
    """State and faults. `never_injects` serves kv as text; `kv_shift` is added to the logprobs of kv answers; `room`
    facts have room for their KV until a user is deleted, and nothing makes room for others; `fails` says of the chats,
    numbered from 1, which are refused, and of the adds with infer likewise."""

    url: str = ""
    refusals: list[str] = field(default_factory=list)
    never_injects: bool = False
    kv_shift: float = 0.0
    failed: int = 0
    room: int = 1_000_000
    longest: int = 1_000_000  # characters of a fact that is taken
    on_score: Callable[[], object] = lambda: None
    owned: dict[str, int] = field(default_factory=dict)
    encoded: dict[str, int] = field(default_factory=dict)
    facts: list[dict[str, Any]] = field(default_factory=list)
    pending: int = 0
    encodes: bool = True
    stored: int = 0
    contexts: set[str] = field(default_factory=set)
    chats: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    cached_tokens: Callable[[str, dict[str, Any]], int] = lambda user, memory: 0  # of a chat's memory
    systems: list[str] = field(default_factory=list)
    sessions: set[tuple[str, str]] = field(default_factory=set)
    keeps_sessions: bool = True
    extractor: str = "llm"
    inferred: list[dict[str, Any]] = field(default_factory=list)  # what was added with infer
    talks: list[list[dict[str, Any]]] = field(default_factory=list)
    injected: int = 0
    tells_workers: bool = True
    warm: str = ""  # the one user whose KV is on the device; others' is on the disk
    has_disk: bool = True
    fails: Callable[[int], bool] = lambda number: False
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def status(self) -> dict[str, Any]:
        """One more chunk is encoded each time that it is asked for."""
        done = min(self.pending, 1) if self.encodes else 0
        self.pending, self.stored = self.pending - done, self.stored + done
        results = {"stored": self.stored, "failed": self.failed if self.stored else 0}
        return {
            "model": "tiny",
            "fingerprint": "f",
            "embedder": "letters",
            "workers": [{"injection": {"tokens": self.injected, "seconds": SECONDS_A_TOKEN * self.injected}}]
            if self.tells_workers
            else None,
            "slab": {"bytes_per_row": 100, "cold_bytes_per_row": 50},
            "disk": {"waiting": 0} if self.has_disk else {},
            "kv": {"enabled": not self.refusals, "refusals": self.refusals, "backend": "NONE", "tail_tokens": 0},
            "extraction": {"extractor": self.extractor},
            "encoding": {"queued": self.pending, "running": 0, "results": results, "tokens": {"own": 40 * self.stored}},
        }

    def add(self, user: str, facts: list[dict[str, Any]]) -> dict[str, Any]:
        """Store facts and queue them."""
        self.facts += facts
        self.owned[user] = self.owned.get(user, 0) + len(facts)
        self.encoded[user] = self.encoded.get(user, 0) + min(len(facts), self.room - sum([*self.encoded.values()]))
        self.pending += len(facts)
        return {"results": [{"id": str(at), "text": fact["text"], "status": "stored"} for at, fact in enumerate(facts)]}

    def infer(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Each message becomes a fact."""
        self.inferred.append(sent)
        return self.add(sent["user_id"], [{"text": message["content"]} for message in sent["messages"]])

    def use_in_session(self, user: str, session: str | None, asked: dict[str, Any], question: str) -> dict[str, Any]:
        """The same; a session that goes on computes no memory."""
        told = self.use(user, asked, question)
        if session is None or not self.keeps_sessions:
            return told
        kept = (user, session) in self.sessions
        self.sessions.add((user, session))
        spared = told["kv_source"]["text"] if kept else 0
        about = {"session": {"state": "kept" if kept else "begun"}}
        return told | about | {"prefilled_tokens": told["prefilled_tokens"] - spared}

    def use(self, user: str, asked: dict[str, Any], question: str) -> dict[str, Any]:
        """The answer's `inferscale` field."""
        self.chats.append({**asked, "question": question})
        cached = self.cached_tokens(user, asked)
        mode, tokens = asked["mode"], TOKENS_A_FACT * asked.get("k", 1)
        context = "".join(asked.get("context", []))
        encoded = not self.never_injects and (not context or context in self.contexts)
        self.contexts.add(context)
        served = "text" if mode == "kv" and not encoded else mode
        memory = 0 if served == "off" else tokens
        injected = memory if served == "kv" else 0
        tier = "device" if user == self.warm else "disk"
        if served == "kv":
            self.warm = user
        self.injected += injected
        return {
            "mode": served,
            "reason": "encoded" if encoded else "nothing_encoded",
            "facts": [] if context else [{"id": f"{question} {at}", "score": 0.5} for at in range(asked.get("k", 0))],
            "injected_tokens": injected,
            "prefilled_tokens": FRAME_TOKENS + memory - injected - cached,
            "memory_tokens": memory,
            "frame_tokens": FRAME_TOKENS,
            "kv_source": {"device": 0, "host": 0, "disk": 0, tier: injected, "text": memory - injected},
            "timings_ms": {"embed": 0.01, "search": 0.01, "plan": 0.01, "stage": 0.0, "ttft": 0.01},
        }

    def footprint(self, user: str) -> dict[str, Any]:
        """What this user stored, and what of it is encoded."""
        facts, encoded = self.owned.get(user, 0), self.encoded.get(user, 0)
        tokens = TOKENS_A_FACT * encoded
        on_device = 100 * tokens if user == self.warm else 0
        held = {"device": on_device, "host": 0, "disk": 50 * tokens, "facts": 7, "index": 8}
        return {"facts": facts, "tokens": tokens, "encoded": encoded, "bytes": held}

    @staticmethod
    def vectors(texts: str | list[str]) -> dict[str, Any]:
        """Counts of letters, in OpenAI's shape."""
        given = [texts] if isinstance(texts, str) else texts
        rows = [[1.0 + text.lower().count(letter) for letter in LETTERS] for text in given]
        return {"data": [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)]}

    def logprobs(self, served: str) -> dict[str, Any]:
        """Two tokens."""
        shift = self.kv_shift if served == "kv" else 0.0
        return {"content": [{"token": t, "logprob": -0.5 + shift, "top_logprobs": []} for t in ("Bru", "no")]}


@contextmanager
def small_server(**faults: Any) -> Iterator[SmallServer]:
    """A running server, for as long as the block lasts."""
    state = SmallServer(**faults)

    class Handler(_Handler):
        server_state = state

    server = _Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # an open loop does not wait for a busy machine to accept


class _Handler(BaseHTTPRequestHandler):
    server_state: SmallServer

    def do_GET(self) -> None:
        state = self.server_state
        if self.path == "/v1/inferscale/status":
            self._json(state.status())
        elif self.path.endswith("/footprint"):
            self._json(state.footprint(self.path.split("/")[-2]))
        else:
            self.send_error(404)

    def do_DELETE(self) -> None:
        [user] = parse_qs(urlsplit(self.path).query)["user_id"]
        self.server_state.deleted.append(user)
        self.server_state.encoded.pop(user, None)
        self._json({"deleted": 1})

    def do_POST(self) -> None:
        state, sent = self.server_state, json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/memories" and any(len(fact["text"]) > state.longest for fact in sent.get("facts", ())):
            self._refuse(400, "facts[0]: too long")
            return
        if (self.path.endswith("/chat/completions") or sent.get("infer")) and state.fails(next(state.numbers)):
            self._refuse(400, "not this one")
            return
        if self.path == "/v1/memories":
            self._json(state.infer(sent) if sent.get("infer") else state.add(sent["user_id"], sent["facts"]))
            return
        if self.path == "/v1/inferscale/admin/score":
            self._score(sent)
            return
        if self.path == "/v1/embeddings":
            self._json(state.vectors(sent["input"]))
            return
        state.systems += [message["content"] for message in sent["messages"] if message["role"] == "system"]
        about, said = sent["inferscale"], sent["messages"]
        use = state.use_in_session(about["user_id"], about.get("session_id"), about["memory"], said[-1]["content"])
        state.talks.append(said)
        if sent.get("stream"):
            pieces = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in ("Bru", "no")]
            last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "inferscale": use}
            events = [f"data: {json.dumps(event)}\n\n" for event in (*pieces, last)] + ["data: [DONE]\n\n"]
            self._send("text/event-stream", "".join(events).encode())
        else:
            choice = {"index": 0, "message": {"content": "Bruno"}, "logprobs": state.logprobs(use["mode"])}
            self._json({"choices": [choice], "inferscale": use})

    def _score(self, sent: dict[str, Any]) -> None:
        state, user = self.server_state, sent["user_id"]
        state.on_score()
        whole = state.encoded.get(user) == state.owned.get(user)
        if sent["mode"] == "kv" and (state.never_injects or not whole):
            self._refuse(503, "the memory is not all encoded: nothing_encoded")
        else:
            own = {"answer": "Bruno"} if sent["answer_tokens"] else {}
            self._json(ten_questions.told(sent["mode"], sent["question"], sent["k"] or 0) | own)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def _refuse(self, status: int, message: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": message}}).encode())

    def _json(self, body: object) -> None:
        self._send("application/json", json.dumps(body).encode())

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
