"""C2: KV that is captured as one chunk and injected answers exactly like prefill."""

from __future__ import annotations

from typing import Any


from .conftest import LiveServer


async def test_a_chat_in_kv_mode_reports_what_it_injected(server: LiveServer) -> None:
    facts = ["Omar keeps three goats named after rivers.", "Omar learned to weld in 2019."]
    added = await server.client.post("/v1/memories", json={"user_id": "smoke", "facts": facts})
    assert added.status_code == 200, added.text
    await server.brain.encoder.drain()
    body = {
        "messages": [{"role": "user", "content": "What did Omar learn?"}],
        "inferscale": {"user_id": "smoke", "memory": {"mode": "kv"}},
        "max_tokens": 8,
        "temperature": 0,
    }
    answer: dict[str, Any] = (await server.client.post("/v1/chat/completions", json=body)).json()
    told = answer["inferscale"]
    assert told["mode"] == "kv" and told["reason"] == "encoded"
    assert told["injected_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert told["injected_tokens"] + told["prefilled_tokens"] == answer["usage"]["prompt_tokens"]
    assert {fact["text"] for fact in told["facts"]} == set(facts)
