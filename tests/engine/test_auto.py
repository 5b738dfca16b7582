"""Mode `auto` on a real engine: the numbers are measured, shown, and followed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inferscale_server.costs import Costs, Line

from .conftest import BLOCK
from .live import LiveServer, assert_same


async def test_the_engine_was_measured_at_start_and_status_says_what_was_found(server: LiveServer) -> None:
    told = (await server.client.get("/v1/inferscale/status")).json()["kv"]["costs"]
    if not told:
        pytest.skip("this machine was too busy at the start for two tries to agree")
    assert told["block_tokens"] == BLOCK
    assert told["prefill"]["us_per_token"] > told["inject"]["us_per_token"] >= 0


async def test_auto_shows_what_it_weighed_and_follows_the_numbers(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Costs(prefill=Line(20.0, 1000.0), inject=Line(20.0, 10.0), block_tokens=BLOCK)
    monkeypatch.setattr(server.brain.recall, "costs", measured)
    await server.remember("auto", *(f"Parcel {n} weighs {n + 3} kilograms." for n in range(12)))
    question = "How much does parcel 5 weigh?"
    kv = await server.chat("auto", question, mode="auto")
    weighed = kv.told["estimated_ms"]
    assert (kv.told["mode"], kv.told["reason"]) == ("kv", "encoded") and 0 < weighed["kv"] < weighed["text"]
    slow = replace(measured, inject=Line(1e6, 0.0))
    monkeypatch.setattr(server.brain.recall, "costs", slow)
    text = await server.chat("auto", question, mode="auto")
    assert (text.told["mode"], text.told["reason"], text.told["injected_tokens"]) == ("text", "text_cheaper", 0)
    assert text.prompt_ids == kv.prompt_ids
    fixed = await server.chat("auto", question, mode="kv")
    assert fixed.told["mode"] == "kv" and "estimated_ms" not in fixed.told
    assert_same(fixed, kv)
