"""The fake engine with host memory: rows are copied as a worker copies them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from inferscale_server.command import Extent, rows_of
from inferscale_server.kv_order import FileOrder, FileReport
from inferscale_server.row_copy import Direction, RowCopy, copy_from_wire

from .engines import FakeEngine


@dataclass
class HostEngine(FakeEngine):
    """`host`: row -> (stamp, token). `gate` holds every copy and load until it is set."""

    host: dict[int, tuple[int, int]] = field(default_factory=dict)
    host_weights: dict[int, str] = field(default_factory=dict)
    copies: list[tuple[Direction, int]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)  # set when something waits at the gate
    during_copy: Callable[[], None] = lambda: None

    async def copy(self, direction: Direction, copies: Sequence[RowCopy]) -> list[bool]:
        self.copies.append((direction, len(copies)))
        await self._pass()
        self.during_copy()
        return [self._copy(direction, copy_from_wire(copy.to_wire())) for copy in copies]

    async def wipe_host(self, extents: Sequence[Extent]) -> None:
        for row in rows_of(extents):
            self.host.pop(row, None)

    async def load(self, orders: Sequence[FileOrder]) -> list[FileReport]:
        await self._pass()
        return await super().load(orders)

    async def _pass(self) -> None:
        if self.gate is not None:
            self.reached.set()
            await self.gate.wait()

    def _copy(self, direction: Direction, copy: RowCopy) -> bool:
        source, target = (self.rows, self.host) if direction == "to_host" else (self.host, self.rows)
        read, into = (self.weights, self.host_weights) if direction == "to_host" else (self.host_weights, self.weights)
        held = [source.get(row, (0, 0)) for row in rows_of(copy.source)]
        if any(stamp != copy.source_stamp for stamp, _ in held):
            return False
        into |= {to: read.get(row, "") for row, to in zip(rows_of(copy.source), rows_of(copy.target), strict=True)}
        for row, (_, token) in zip(rows_of(copy.target), held, strict=True):
            target[row] = (copy.stamp, token)
        return True
