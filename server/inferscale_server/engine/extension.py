"""Rare commands to the workers, by `collective_rpc`: attach, ask what was captured, save, load, wipe, count.

Never in a chat's way. vLLM mixes this class into its worker, so every name starts with
`inferscale_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

from inferscale_server.engine.connector import InferScaleConnector
from inferscale_server.engine.worker_half import WorkerHalf
from inferscale_server.kv_order import order_from_wire
from inferscale_server.row_copy import Direction, copy_from_wire


class InferScaleWorker:
    """Methods that each worker gains."""

    def inferscale_attach(self, compiled: bool) -> dict[str, Any]:
        """Tap the loaded model. Returns what it is, and `refusals`: why KV mode is off (empty: it is on)."""
        connector = _connector()
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        report = connector.worker.attach(connector._vllm_config, connector._kv_cache_config, model, compiled)
        slab = connector.worker.slab
        return {
            "refusals": report.refusals,
            "layers": len(report.layers),
            "bytes_per_row": 0 if slab is None else slab.bytes_per_row,
            "cold_bytes_per_row": 0 if slab is None else slab.layout(0, 1, connector.worker.codec).row_bytes,
            "rotary_positions": min((g.table.positions for g in slab.groups if g.table), default=0) if slab else 0,
            "rotary_digest": "" if slab is None else slab.rotary_digest(),
            "backend": report.layers[0].attention.attn_backend.get_name() if report.layers else "none",
        }

    def inferscale_captured(self, attempts: Sequence[tuple[int, Sequence[Sequence[int]]]]) -> list[bool]:
        """Is each attempt, given as stamp and [row, length] extents, complete and finite on this rank?"""
        return _worker().captured([(stamp, [(row, length) for row, length in ext]) for stamp, ext in attempts])

    def inferscale_difference(self, extents: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> list[float]:
        """How far two encodings of the same tokens are apart on this rank: [keys, values]."""
        apart = _worker().difference([(row, n) for row, n in extents], [(row, n) for row, n in others])
        return [apart.keys, apart.values]

    def inferscale_wipe(self, extents: Sequence[Sequence[int]]) -> None:
        """Zero rows that were forgotten."""
        _worker().wipe([(row, length) for row, length in extents])

    def inferscale_save(self, orders: Sequence[object]) -> list[list[object]]:
        """Write this rank's part of each chunk beside its file's place; [result, bytes] of each. Blocks the engine."""
        rank, world = _rank_of(self)
        return [_worker().save(order_from_wire(order), rank, world).to_wire() for order in orders]

    def inferscale_load(self, orders: Sequence[object]) -> list[list[object]]:
        """Fill this rank's rows of each chunk from its file; [result, bytes] of each. Blocks the engine."""
        rank, world = _rank_of(self)
        return [_worker().restore(order_from_wire(order), rank, world).to_wire() for order in orders]

    def inferscale_copy(self, direction: Direction, copies: Sequence[object]) -> list[bool]:
        """Copy chunks between slab and host memory on this rank; which were still there? Blocks the engine."""
        return [_worker().copy(direction, copy_from_wire(copy)) for copy in copies]

    def inferscale_wipe_host(self, extents: Sequence[Sequence[int]]) -> None:
        """Zero host rows that were forgotten."""
        _worker().wipe_host([(row, length) for row, length in extents])

    def inferscale_stats(self) -> dict[str, Any]:
        """Injection times and fault counts of this worker."""
        worker = _worker()
        injector = "none" if worker.slab is None else worker.slab.injector
        return {"injection": worker.clock.read(), "injector": injector, "errors": dict(worker.errors)}


def _connector() -> InferScaleConnector:
    connector = get_kv_transfer_group()
    assert isinstance(connector, InferScaleConnector)
    return connector


def _rank_of(worker: Any) -> tuple[int, int]:
    """This worker's number among those that share the model, and how many they are."""
    return int(worker.rank), int(worker.parallel_config.world_size)


def _worker() -> WorkerHalf:
    return _connector().worker
