"""The start-up gate on a real engine: green as it stands, red on each fault that is planted in the worker's slab."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from .live import LiveServer


def slab_of_worker() -> Any:
    """The slab; called in the worker."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().worker.slab


def shift_positions(worker: Any) -> None:
    """Keys are put one position too far."""
    for group in slab_of_worker().groups:
        group.table.at = lambda at, table=group.table: (table.cos[at + 1], table.sin[at + 1])


def swap_values(worker: Any) -> None:
    """One layer's heads get each other's values on their way back."""
    group = slab_of_worker().groups[0]
    write = group.whole_write = group.writes[3]
    group.writes[3] = lambda layer, key, value, cache, slots: write(layer, key, value.flip(1), cache, slots)


def zero_a_layer(worker: Any) -> None:
    """One layer's values never reach the cache."""
    group = slab_of_worker().groups[0]
    write = group.whole_write = group.writes[3]
    group.writes[3] = lambda layer, key, value, cache, slots: write(layer, key, value * 0, cache, slots)


def take_a_wrong_base(worker: Any) -> None:
    """The table is another model's, both ways: nothing shows where keys go back to where they came from."""
    import torch

    from inferscale_server.rotary import RotaryTable

    for group in slab_of_worker().groups:
        table = group.whole_table = group.table
        at = torch.arange(table.positions, dtype=torch.float64)[:, None]
        angles = at * 777.0 ** (-torch.arange(0, table.rotary_dim, 2, dtype=torch.float64) / table.rotary_dim)
        group.table = RotaryTable(torch.cat((angles.cos(), angles.sin()), -1).float(), table.is_neox)


def mend(worker: Any) -> None:
    """Undo whatever was planted."""
    for group in slab_of_worker().groups:
        group.table = group.__dict__.pop("whole_table", group.table)
        group.table.__dict__.pop("at", None)
        if "whole_write" in group.__dict__:
            group.writes[3] = group.__dict__.pop("whole_write")


@pytest_asyncio.fixture(loop_scope="session")
async def whole(server: LiveServer) -> AsyncIterator[LiveServer]:
    """The server, mended afterwards."""
    yield server
    await server.in_workers(mend)


async def judged(server: LiveServer, folder: Path) -> Any:
    """The gate's verdict as at a first start: with a header that is encoded now, by what is planted now."""
    from inferscale_server.engine.probe_rows import ProbeRows
    from inferscale_server.engine.support import gate_of
    from inferscale_server.engine.verdict import VerdictFolder

    desk = server.plugin._desk
    gate = gate_of(server.brain, desk._door, desk._framer, server.engine.vllm_config)
    rows = ProbeRows(desk._door, server.catalog)
    header = await rows.capture(None, server.catalog.get(server.brain.header_key).token_ids)
    try:
        return await replace(gate, verdicts=VerdictFolder(folder, {})).judge(header)
    finally:
        rows.close()


async def test_the_gate_is_green_and_leaves_no_row_behind(server: LiveServer, tmp_path: Path) -> None:
    await server.encoded()
    before = server.catalog.rows_used - sum(extent.length for extent in server.catalog.unwiped)
    verdict = await judged(server, tmp_path)
    for probe in verdict.probes:
        print(f"{probe.name}: {probe.measured:.2g} of {probe.allowed:g}")
    print(verdict.quality)
    assert verdict.reasons == [] and len(verdict.probes) == 10
    assert verdict.quality.text < verdict.quality.off and verdict.quality.kv < verdict.quality.off
    assert server.catalog.rows_used - sum(extent.length for extent in server.catalog.unwiped) == before
    again = await judged(server, tmp_path)
    assert again.recalled and again.reasons == []


Plant = Callable[[Any], None]


@pytest.mark.parametrize(
    ("plant", "probe"),
    [
        (shift_positions, "answer"),
        (swap_values, "answer"),
        (zero_a_layer, "answer"),
        (take_a_wrong_base, "rotation at 0"),  # what goes back to where it was taken answers as it should
    ],
)
async def test_the_gate_is_red_on_a_planted_fault(whole: LiveServer, tmp_path: Path, plant: Plant, probe: str) -> None:
    await whole.in_workers(plant)
    verdict = await judged(whole, tmp_path)
    print([f"{found.name}: {found.measured:.2g}" for found in verdict.probes])
    assert next(found.name for found in verdict.probes if found.reason is not None) == probe
    assert verdict.reasons and verdict.quality is None


async def test_status_shows_what_the_gate_measured(server: LiveServer) -> None:
    kv = (await server.client.get("/v1/inferscale/status")).json()["kv"]
    assert kv["enabled"] and kv["gate"]["passed"] is True and kv["tail_tokens"] in (0, 64)
    assert {probe["name"] for probe in kv["gate"]["probes"]} >= {"answer", "rotation at 0", "injection at 0"}
