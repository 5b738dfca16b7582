"""What a user's memory takes is the same whether its KV lies in the slab or only on the disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

from inferscale_server.brain import Brain, KvSupport
from inferscale_server.edge.metrics import Metrics
from inferscale_server.edge.services import Footprint
from inferscale_server.facts import FactStore
from inferscale_server.index import ExactIndex
from inferscale_server.memory import MemoryService
from inferscale_server.sessions import Sessions
from inferscale_server.tiers import HostTier
from inferscale_server.types import FactDraft
from tests.memory.fakes import FakeEmbedder
from tests.unit.builders import ALICE, BOB, store
from tests.unit.engines import HEADER, World, world

FACTS, BYTES_PER_ROW = 12, 8


def brain_of(here: World, memory: MemoryService, registry: CollectorRegistry) -> Brain:
    """As much of a server as counts what a user's memory takes."""
    none = cast(Any, None)
    return Brain(
        none,
        "m",
        none,
        memory,
        memory.embedder,
        here.catalog,
        here.encoder,
        none,
        none,
        none,
        Metrics(registry),
        KvSupport(bytes_per_row=BYTES_PER_ROW),
        HEADER.key,
        none,
        Sessions(10, 60),
        none,
        here.news.readers,
        none,
        disk=here.disk,
    )


def of_tier(registry: CollectorRegistry, tier: str) -> tuple[float | None, float | None]:
    """Bytes and budget of a tier, as the gauges say."""
    labels = {"tier": tier}
    return tuple(registry.get_sample_value(f"inferscale_tier_{name}bytes", labels) for name in ("", "budget_"))  # type: ignore[return-value]


def in_answers(brain: Brain) -> tuple[int, int, int]:
    """What answers to Alice say of the tiers."""
    told = brain.kv_bytes(ALICE)
    assert list(told) == ["device", "host", "disk"] and not any(brain.kv_bytes(None).values())
    return told["device"], told["host"], told["disk"]


async def footprint(folder: Path, *new: str) -> tuple[Footprint, Footprint]:
    """Of Alice's memory at a start and once everything is encoded or loaded; the gauges tell the same."""
    store = FactStore(folder / "facts.sqlite3")
    here = world(folder=folder / "kv", facts={ALICE: list(store.oldest(ALICE, FACTS))})
    memory = MemoryService(store, ExactIndex(), FakeEmbedder(), here.encoder)
    await memory.start()
    if new:
        await memory.add(ALICE, [FactDraft(text) for text in new])
        here.facts[ALICE] = list(memory.facts(ALICE))
    registry = CollectorRegistry()
    brain = brain_of(here, memory, registry)
    here.encoder.added(ALICE, ())
    cold = await brain.footprint(ALICE)
    brain.refresh_metrics()
    assert registry.get_sample_value("inferscale_encode_queue") == cold.queued + 1  # the header
    await here.encoder.drain()
    warm = await brain.footprint(ALICE)
    brain.refresh_metrics()
    assert registry.get_sample_value("inferscale_encode_queue") == warm.queued == 0
    tiers = {tier: of_tier(registry, tier) for tier in ("device", "host", "disk")}
    assert here.disk is not None
    assert tiers["device"] == (here.catalog.rows_used * BYTES_PER_ROW, here.catalog.rows * BYTES_PER_ROW)
    assert tiers["disk"] == (here.disk.shelf.bytes, here.disk.shelf.budget_bytes) and tiers["host"] == (0, 0)
    assert in_answers(brain) == (warm.device_bytes, warm.host_bytes, warm.disk_bytes)
    assert warm.device_bytes <= tiers["device"][0] and 0 < warm.disk_bytes <= tiers["disk"][0]
    await memory.aclose()
    return cold, warm


async def test_a_restart_changes_nothing_of_what_a_memory_is_said_to_take(tmp_path: Path) -> None:
    cold, warm = await footprint(tmp_path, *(f"alice saw bird {number}" for number in range(FACTS)))
    assert (cold.tokens, cold.queued) == (0, FACTS)
    again_cold, again = await footprint(tmp_path)
    assert again_cold.tokens == again.tokens == warm.tokens > 0
    assert (cold.encoded, warm.encoded, again_cold.encoded, again.encoded) == (0, FACTS, FACTS, FACTS)
    assert again.facts == again_cold.facts == FACTS and again_cold.device_bytes == 0
    assert again.disk_bytes == again_cold.disk_bytes == warm.disk_bytes
    assert warm.device_bytes == again.device_bytes == warm.tokens * BYTES_PER_ROW


async def test_the_bytes_of_facts_are_those_that_the_quota_counts(path: Path) -> None:
    memory = MemoryService(FactStore(path), ExactIndex(), FakeEmbedder(), (here := world()).encoder)
    await memory.start()
    await memory.add(ALICE, [FactDraft("f\u00e4ct", metadata={"k": "value"})])
    brain = brain_of(here, memory, CollectorRegistry())
    assert (await brain.footprint(ALICE)).facts_bytes == len("f\u00e4ct".encode()) + len('{"k": "value"}')
    await memory.aclose()


async def test_copies_in_host_memory_count_by_what_a_cold_row_takes() -> None:
    here = world()
    brain = brain_of(here, cast(MemoryService, SimpleNamespace(embedder=None)), CollectorRegistry())
    brain.support.cold_bytes_per_row = 3
    brain.host = HostTier(here.catalog, 100, cast(Any, None))
    store(brain.host.catalog, "a", 5)
    store(brain.host.catalog, "b", 7, owner=BOB)
    assert brain.kv_bytes(ALICE) == {"device": 0, "host": 3 * 5, "disk": 0}


async def test_what_is_read_through_an_adapter_takes_room_and_counts_no_fact_twice(path: Path) -> None:
    memory = MemoryService(FactStore(path), ExactIndex(), FakeEmbedder(), (here := world()).news)
    await memory.start()
    await memory.add(ALICE, [FactDraft(f"alice saw bird {number}") for number in range(FACTS)])
    here.facts[ALICE] = list(memory.facts(ALICE))
    await here.encoder.drain()
    brain = brain_of(here, memory, CollectorRegistry())
    before = await brain.footprint(ALICE)
    reader = here.news.readers.through(ALICE, "pirate")
    here.encoder.want(reader, [here.encoder.job_of(here.facts[ALICE][0], reader)])
    await here.encoder.drain()
    after = await brain.footprint(ALICE)
    assert after.device_bytes == 2 * before.device_bytes > 0
    assert in_answers(brain) == (after.device_bytes, 0, 0)
    assert brain.kv_bytes(reader) == brain.kv_bytes(ALICE)
    assert (after.tokens, after.encoded, after.queued) == (before.tokens, FACTS, 0)
    await memory.aclose()
