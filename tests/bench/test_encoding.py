"""How long a benchmark waits for KV: as long as some comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.bench import encoding
from inferscale_server.bench.conversation import DatedFact
from inferscale_server.bench.encoding import TIMEOUT_S, take_in, wait_encoded
from inferscale_server.errors import Unavailable
from tests.bench.small_server import small_server


@dataclass
class Clock:
    """Each wait takes `step_s`, whatever was asked for."""

    step_s: float
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += self.step_s


def taking(add: Callable[..., Any], clock: Clock, seconds: float) -> Callable[..., Any]:
    """The same add, which takes so long."""

    def slow(*args: Any, **how: Any) -> Any:
        clock.now_s += seconds
        return add(*args, **how)

    return slow


def test_a_conversation_that_takes_longer_than_any_pause_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "time", Clock(TIMEOUT_S / 4))
    with small_server(pending=10) as server, InferScaleClient(base_url=server.url) as client:
        marks = wait_encoded(client, lambda text: None)
    assert marks[-1].pending == 0 and marks[-1].after_s > 2 * TIMEOUT_S


def test_a_fact_that_never_gets_its_kv_is_given_up_before_the_next_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "time", Clock(TIMEOUT_S / 10))
    facts = [DatedFact("Ilse rows."), DatedFact("Ravi bakes.")]
    with (
        small_server(encodes=False) as server,
        InferScaleClient(base_url=server.url) as client,
        pytest.raises(Unavailable, match="a fact was still waiting for its KV"),
    ):
        take_in(client, "u", facts, lambda text: None, one_by_one=True)
    assert [fact["text"] for fact in server.facts] == ["Ilse rows."]


def test_facts_that_come_singly_are_timed_from_the_first_add_to_the_last_ones_kv(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "time", clock := Clock(1.0))
    facts = [DatedFact(f"Ilse rowed in {year}.") for year in range(2000, 2010)]
    with small_server() as server, InferScaleClient(base_url=server.url) as client:
        monkeypatch.setattr(type(client.memories), "add", taking(type(client.memories).add, clock, 2.0))
        found = take_in(client, "u", facts, lambda text: None, one_by_one=True)
    assert (found.store_s, found.encode_s, found.facts_per_s) == (20.0, 20.0, 0.5)
    assert found.tokens_per_s == 5.0 and [mark.after_s for mark in found.marks][:2] == [2.0, 4.0]


def test_facts_that_come_together_are_timed_from_the_end_of_storing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "time", clock := Clock(1.0))
    facts = [DatedFact(f"Ilse rowed in {year}.") for year in range(2000, 2011)]
    with small_server() as server, InferScaleClient(base_url=server.url) as client:
        monkeypatch.setattr(type(client.memories), "add", taking(type(client.memories).add, clock, 2.0))
        found = take_in(client, "u", facts, lambda text: None)
    assert (found.store_s, found.encode_s, found.facts_per_s) == (2.0, 10.0, 1.1)


def test_an_encoder_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "time", Clock(TIMEOUT_S / 10))
    still = "3 encodings were still waiting, and none had come for 1800 s"
    with (
        small_server(pending=3, encodes=False) as server,
        InferScaleClient(base_url=server.url) as client,
        pytest.raises(Unavailable, match=still),
    ):
        wait_encoded(client, lambda text: None)
