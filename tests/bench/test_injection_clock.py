"""Worker time of injections, from statuses that come late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inferscale_sdk import InferScaleClient
from inferscale_server.bench import injection_clock
from inferscale_server.bench.injection_clock import InjectionClock, injection_ms, settled_clocks
from inferscale_server.bench.overhead import overheads
from tests.bench.small_server import SECONDS_A_TOKEN, SmallServer, small_server
from tests.bench.test_cell import sample


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection_clock, "POLL_S", 0.0)
    monkeypatch.setattr(injection_clock, "CAUGHT_UP_S", 0.0)


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server() as server:
        yield server


def test_only_what_was_injected_meanwhile_counts(server: SmallServer) -> None:
    server.injected = 10**6

    def ask() -> None:
        server.injected += 300

    with InferScaleClient(base_url=server.url) as client:
        assert injection_ms(client, ask, 1900) == pytest.approx(1.9e6 * SECONDS_A_TOKEN)
        assert injection_ms(client, lambda: None, 1900) is None


def test_a_late_status_is_waited_for(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection_clock, "CAUGHT_UP_S", 60.0)
    told = iter([0, 0, 0, 500])
    monkeypatch.setattr(injection_clock, "clocks", lambda client: [InjectionClock(next(told), 1.0)])
    with InferScaleClient(base_url=server.url) as client:
        assert settled_clocks(client) == [InjectionClock(500, 1.0)]


def test_a_server_that_tells_no_times_has_none(server: SmallServer) -> None:
    server.tells_workers = False
    with InferScaleClient(base_url=server.url) as client:
        assert injection_ms(client, lambda: None, 1900) is None


def test_overheads_are_medians_of_the_answers_as_kv_with_the_most_facts() -> None:
    samples = [sample(50, "kv"), sample(50, "text"), sample(5, "kv"), sample(50, "off")]
    embedded, without, injection = overheads(samples, 10.5)
    assert (embedded.ms, embedded.met, without.ms, without.met) == (12.0, True, 2.0, False)
    assert (injection.ms, injection.met) == (10.5, False)
    assert [one.name for one in overheads(samples)] == [embedded.name, without.name]
    assert overheads([]) == []
