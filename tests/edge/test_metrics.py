"""Claims about the `inferscale_*` series."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import PlainTextResponse

from inferscale_server.edge.guard import Guard
from inferscale_server.edge.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
PACKAGES = {"inferscale_sdk", "inferscale_server"}
ALLOWED_LABELS = {"mode", "reason", "hook", "result", "kind", "tier", "state"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_each_event_moves_its_own_series(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.served("kv", "planned", injected_tokens=72, prefilled_tokens=9)
    metrics.served("text", "short", injected_tokens=0, prefilled_tokens=80)
    metrics.claimed_short()
    metrics.hook_failed("start_load_kv", times=2)
    metrics.encoded("stored")
    metrics.encode_tokens("own", 40)
    metrics.encode_tokens("prefix", 7)
    metrics.encode_queue(3)
    metrics.slab(used_rows=10, total_rows=64)
    metrics.served_from({"device": 60, "host": 12, "text": 3})
    metrics.staged("host", "late")
    metrics.host(used_rows=5, total_rows=128)
    metrics.tier("disk", 7, 99)
    metrics.session_turn("kept", "same_block")
    metrics.sessions(2)
    value = registry.get_sample_value
    assert value("inferscale_requests_total", {"mode": "kv", "reason": "planned"}) == 1
    assert value("inferscale_requests_total", {"mode": "text", "reason": "short"}) == 1
    assert value("inferscale_injected_tokens_total") == 72
    assert value("inferscale_prefilled_tokens_total") == 89
    assert value("inferscale_claims_short_total") == 1
    assert value("inferscale_hook_errors_total", {"hook": "start_load_kv"}) == 2
    assert value("inferscale_encodes_total", {"result": "stored"}) == 1
    assert value("inferscale_encode_tokens_total", {"kind": "own"}) == 40
    assert value("inferscale_encode_tokens_total", {"kind": "prefix"}) == 7
    assert value("inferscale_encode_queue") == 3
    assert (value("inferscale_slab_rows_used"), value("inferscale_slab_rows_total")) == (10, 64)
    assert [value("inferscale_tier_tokens_total", {"tier": tier}) for tier in ("device", "host", "text")] == [60, 12, 3]
    assert value("inferscale_stages_total", {"tier": "host", "result": "late"}) == 1
    assert (value("inferscale_host_rows_used"), value("inferscale_host_rows_total")) == (5, 128)
    assert [value(f"inferscale_tier_{name}bytes", {"tier": "disk"}) for name in ("", "budget_")] == [7, 99]
    assert value("inferscale_session_turns_total", {"state": "kept", "reason": "same_block"}) == 1
    assert value("inferscale_sessions") == 2


def test_no_label_can_name_a_user(registry: CollectorRegistry) -> None:
    metrics = Metrics(registry)
    metrics.served("kv", "planned", injected_tokens=1, prefilled_tokens=1)
    metrics.hook_failed("h")
    metrics.encoded("failed")
    metrics.encode_tokens("spare", 2)
    metrics.staged("disk", "staged")
    metrics.session_turn("begun", "first_turn")
    labels = {name for family in registry.collect() for sample in family.samples for name in sample.labels}
    assert labels == ALLOWED_LABELS


def test_every_series_has_the_products_prefix(registry: CollectorRegistry) -> None:
    Metrics(registry)
    names = [line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE")]
    assert names and all(name.startswith("inferscale_") for name in names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_series_that_a_page_names_is_exposed_by_that_name(page: Path, registry: CollectorRegistry) -> None:
    Metrics(registry)
    series = {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}
    named = set(re.findall(r"\binferscale_[a-z_]+", page.read_text("utf-8"))) - PACKAGES
    assert named <= series


def test_pages_name_series() -> None:
    told = "".join(page.read_text("utf-8") for page in PAGES)
    assert "`inferscale_stages_total{tier,result}`" in told and "`inferscale_sessions`" in told


async def test_gauges_are_read_as_they_are_when_they_are_asked_for(registry: CollectorRegistry) -> None:
    app, waiting, metrics = FastAPI(), [3], Metrics(registry)
    app.add_route("/metrics", lambda request: PlainTextResponse(generate_latest(registry)))
    app.add_middleware(Guard)
    app.state.refresh_metrics = lambda: metrics.encode_queue(waiting[0])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for number in (3, 0, 7):
            waiting[0] = number
            answer = await client.get("/metrics")
            assert f"inferscale_encode_queue {number}.0" in answer.text.splitlines()
