"""Encoded facts that lie in colder tiers only, with a stager that could bring them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferscale_server.catalog import ChunkKey
from inferscale_server.staging import Stager, Wanted
from inferscale_server.tiers import HostTier
from inferscale_server.types import Fact

from .builders import ALICE, fact
from .engines import World, world
from .host_engine import HostEngine


@dataclass
class Cold:
    """Encoded facts that lie in colder tiers only."""

    world: World
    engine: HostEngine
    host: HostTier | None
    stager: Stager
    facts: list[Fact]

    @property
    def wanted(self) -> list[Wanted]:
        """All facts, as a chat wants them."""
        return [self.want(each) for each in self.facts]

    def want(self, one: Fact) -> Wanted:
        job = self.world.encoder.job_of(one)
        return Wanted(job.key, job.token_ids)

    async def evict(self) -> None:
        """The facts leave the slab."""
        self.world.catalog.drop_where(ALICE, lambda chunk: chunk.key.kind == "fact")
        await self.world.encoder.wipe()

    def warm(self) -> list[str]:
        """Facts that lie in the slab."""
        return [one.id for one in self.facts if ChunkKey("fact", ALICE, one.id) in self.world.catalog]

    def tokens_of(self, one: Fact) -> tuple[int, ...]:
        chunk = self.world.chunk(one)
        assert chunk is not None
        return self.engine.tokens_of(chunk)


async def cold(
    folder: Path | None = None,
    facts: int = 3,
    host_rows: int = 0,
    rows: int = 1_000,
    deadline_s: float = 5.0,
    text_s: float | None = None,
    of: Sequence[Fact] = (),
) -> Cold:
    """So many facts encoded, saved to a folder and copied to the host where these are given, and evicted."""
    here = world(rows=rows, folder=folder)
    engine = HostEngine()
    here.encoder._batches._engine = engine
    if here.disk is not None:
        here.disk._engine = engine
    host = HostTier(here.catalog, host_rows, engine) if host_rows else None
    if host is not None:
        here.catalog.on_commit = host.note
    stager = Stager(here.catalog, here.encoder.wipe, host, here.disk, deadline_s, lambda tokens: text_s)
    made = list(of) or [fact(number) for number in range(1, facts + 1)]
    here.add(*made)
    await here.encoder.drain()
    while host is not None and await host.copy_some():
        pass
    all_ = Cold(here, engine, host, stager, made)
    await all_.evict()
    assert all_.warm() == []
    return all_
