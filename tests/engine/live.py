"""One running server as the engine tests see it: chats, facts, streams that are dropped, and looks inside."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

POLL_S = 0.05
QUIET_POLLS = 3
LONGEST_WAIT_S = 120.0


@dataclass(frozen=True)
class Answer:
    """One chat's answer."""

    status: int
    body: dict[str, Any]

    @property
    def choice(self) -> dict[str, Any]:
        """The first choice."""
        assert self.status == 200, (self.status, self.body)
        return self.body["choices"][0]  # type: ignore[no-any-return]

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choice["message"]["content"]  # type: ignore[no-any-return]

    @property
    def tokens(self) -> list[int]:
        """The first choice's token ids."""
        return self.choice["token_ids"]  # type: ignore[no-any-return]

    @property
    def logprobs(self) -> list[float]:
        """Log probability of each generated token."""
        return [token["logprob"] for token in self.choice["logprobs"]["content"]]

    @property
    def told(self) -> dict[str, Any]:
        """What the server says about memory."""
        assert self.status == 200, (self.status, self.body)
        return self.body["inferscale"]  # type: ignore[no-any-return]

    @property
    def prompt_ids(self) -> list[int]:
        """The prompt as the model got it."""
        return self.body["prompt_token_ids"]  # type: ignore[no-any-return]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.body["usage"]["prompt_tokens"]  # type: ignore[no-any-return]

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed: injected, or hit in the prefix cache."""
        details = self.body["usage"].get("prompt_tokens_details") or {}
        return details.get("cached_tokens") or 0

    @property
    def owned_ids(self) -> set[str]:
        """Ids of the facts in the prompt."""
        return {fact["id"] for fact in self.told["facts"]}


def assert_same(a: Answer, b: Answer, tolerance: float = 1e-3) -> None:
    """Greedy tokens are identical and their log probabilities differ by less than `tolerance`."""
    assert a.tokens == b.tokens, (a.text, b.text)
    worst = max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True))
    assert worst < tolerance, worst


@dataclass
class LiveServer:
    """The app around one engine. `rogue("claim")` breaks that method of the connector until `rogue("")`."""

    app: Any
    client: httpx.AsyncClient
    engine: Any
    plugin: Any
    rogue_file: Path
    model: str = field(default="")

    @property
    def brain(self) -> Any:
        """Stores, models and verbs."""
        return self.plugin._brain

    @property
    def catalog(self) -> Any:
        """Which chunk lies where."""
        return self.brain.catalog

    def rogue(self, method: str) -> None:
        """Break one method of the connector; an empty name mends it."""
        self.rogue_file.write_text(method)

    async def encoded(self) -> None:
        """Wait until the encoder has nothing to do."""
        encoder, quiet = self.brain.encoder, 0
        async with asyncio.timeout(LONGEST_WAIT_S):
            while quiet < QUIET_POLLS:
                await asyncio.sleep(POLL_S)
                quiet = quiet + 1 if encoder.queued() + encoder.running() == 0 else 0

    async def remember(self, user: str, *facts: str) -> set[str]:
        """Store facts and wait until they are encoded. Returns their ids."""
        added = await self.client.post("/v1/memories", json={"user_id": user, "facts": list(facts)})
        assert added.status_code == 200, added.text
        await self.encoded()
        return {result["id"] for result in added.json()["results"]}

    def body(self, user: str | None, question: str, memory: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A greedy chat request that asks for log probabilities and token ids."""
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 16,
            "temperature": 0,
            "logprobs": True,
            "return_token_ids": True,
        }
        if user is not None:
            body["inferscale"] = {"user_id": user, "memory": memory}
        return body | more

    async def chat(
        self, user: str | None, question: str, mode: str = "kv", context: Sequence[str] = (), **more: Any
    ) -> Answer:
        """Ask one question; `more` goes into the body."""
        memory = {"mode": mode, **({"context": list(context)} if context else {})}
        return await self.send(self.body(user, question, memory, **more))

    async def send(self, body: dict[str, Any]) -> Answer:
        """One chat request as it stands."""
        answer = await self.client.post("/v1/chat/completions", json=body)
        return Answer(answer.status_code, answer.json())

    async def chat_encoded(self, user: str, question: str, context: Sequence[str] = (), **more: Any) -> Answer:
        """Ask in KV mode with everything encoded: once so that it is wanted, and once more for the answer."""
        await self.chat(user, question, context=context, max_tokens=1)
        await self.encoded()
        return await self.chat(user, question, context=context, **more)

    async def stream(self, body: dict[str, Any], drop_after: int | None = None) -> list[dict[str, Any]]:
        """The parsed events of a stream, read as they come; the client hangs up after `drop_after` of them."""
        events: list[dict[str, Any]] = []
        gone, sent = asyncio.Event(), False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": json.dumps({**body, "stream": True}).encode()}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            for line in message.get("body", b"").decode().splitlines():
                if line.startswith("data: {"):
                    events.append(json.loads(line.removeprefix("data: ")))
            if drop_after is not None and len(events) >= drop_after:
                gone.set()
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                gone.set()

        await self.app(_chat_scope(), receive, send)
        return events

    async def metric(self, name: str) -> float:
        """The sum over all labels of one metric."""
        text = (await self.client.get("/metrics")).text
        found = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return sum(map(float, found))

    async def free_blocks(self) -> int:
        """Blocks that no request holds, as the next arriving request finds them."""
        await self.chat(None, "Hello.", max_tokens=1)
        return int(self.rogue_file.with_suffix(".free").read_text())

    async def in_workers(self, function: Callable[[Any], Any]) -> Any:
        """Run a function of the worker in every worker."""
        return await self.engine.collective_rpc(function)

    async def forget_prefixes(self) -> None:
        """Empty vLLM's prefix cache."""
        assert await self.engine.reset_prefix_cache() is not False

    def words(self, tokens: int, seed: int = 0) -> str:
        """A context text whose memory line is exactly `tokens` (> 2) tokens long."""
        from inferscale_server.wording import fact_line

        chosen = [_WORDS[(seed * 7 + number * (seed + 3)) % len(_WORDS)] for number in range(tokens)]
        for count in range(tokens, 0, -1):
            if len(self.brain.tokenize(fact_line(" ".join(chosen[:count])))) == tokens:
                return " ".join(chosen[:count])
        raise AssertionError(f"no text of {tokens} tokens")


_WORDS = [
    "dog",
    "house",
    "river",
    "blue",
    "seven",
    "garden",
    "train",
    "music",
    "winter",
    "bread",
    "stone",
    "light",
    "paper",
    "ship",
    "green",
    "doctor",
]


def _chat_scope() -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("test", 80),
    }
