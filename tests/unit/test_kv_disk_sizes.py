"""Chunks that the disk's budget could not hold by themselves: they are left out, and push nothing out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferscale_server.catalog import ChunkKey
from inferscale_server.job import Job
from inferscale_server.recipe import Recipe

from .builders import ALICE, fact
from .engines import HEADER, World, world
from .test_kv_disk import encoded, events, facts, files, restarted

BUDGET = 1 << 13
SPACIOUS: dict[str, Any] = {"recipe": Recipe(header=False), "rows": 3_000, "max_model_len": 3_000}


def names(here: World) -> set[str]:
    """What lies on the disk."""
    assert here.disk is not None
    return {stored.identity.name for stored in here.disk.shelf.all()}


@pytest.mark.parametrize("spare_bytes", [-8, 8], ids=["its rows alone are larger", "its file is larger"])
async def test_a_chunk_larger_than_the_budget_is_not_kept_and_pushes_nothing_out(
    tmp_path: Path, spare_bytes: int
) -> None:
    small = facts(3)
    here = await encoded(tmp_path, *small, **SPACIOUS)
    large = fact(50, "word " * ((BUDGET - spare_bytes) // 8 - 1))
    before = await restarted(tmp_path, here, **SPACIOUS, budget_bytes=BUDGET)
    assert before.disk is not None
    before.add(large)
    await before.encoder.drain()
    chunk = before.chunk(large)
    assert chunk is not None and (8 * len(chunk.token_ids) > BUDGET) == (spare_bytes < 0)
    assert names(before) == {HEADER.key.name, *(each.id for each in small)} and len(files(tmp_path)) == 4
    assert events(before)["save:too_large"] == 1 and before.disk.command_ms["save"].commands == (spare_bytes > 0)


async def test_a_file_larger_than_the_budget_of_a_new_start_pushes_nothing_out(tmp_path: Path) -> None:
    small, large = facts(2), fact(50, "word " * (BUDGET // 8))
    here = await encoded(tmp_path, *small, large, **SPACIOUS)
    after = world(folder=tmp_path, facts=here.facts, **SPACIOUS, budget_bytes=BUDGET)
    assert names(after) == {HEADER.key.name, *(each.id for each in small)} and len(files(tmp_path)) == 3
    assert events(after) == {"drop:too_large": 1}


async def test_a_header_larger_than_its_share_is_not_kept_and_pushes_no_other_out(tmp_path: Path) -> None:
    here = await encoded(tmp_path, budget_bytes=BUDGET)
    assert names(here) == {HEADER.key.name}
    here.encoder.want(ALICE, [Job(ChunkKey("header", ALICE, "long"), tuple(range(200)))])
    await here.encoder.drain()
    assert names(here) == {HEADER.key.name}
    assert events(here)["save:too_large"] == 1
