"""The worker's half of the connector: executes one step's commands on slab and paged cache.

Created empty with the connector; `attach` comes once by RPC when the model is loaded, before the first request.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from inferscale_server.command import Extent, rows_of
from inferscale_server.engine.capture import Tap
from inferscale_server.engine.difference import Difference, difference_of
from inferscale_server.engine.host_rows import HostRows
from inferscale_server.engine.injection_clock import InjectionClock
from inferscale_server.engine.rank_files import read_chunk, write_chunk
from inferscale_server.engine.scheduler_half import Load, StepCommands
from inferscale_server.engine.slab import Slab, SlabCodec
from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvCodec
from inferscale_server.kv_order import FULL, FileOrder, FileReport
from inferscale_server.rotary import compiled_gather
from inferscale_server.row_copy import Direction, RowCopy

if TYPE_CHECKING:
    from inferscale_server.engine.layers import LayerReport

logger = logging.getLogger(__name__)


class WorkerHalf:
    """State of one worker: the slab, the tap on the cache writes, and what went wrong."""

    def __init__(
        self, slab_rows: int, host_rows: int = 0, codec: KvCodec = "none", slab_codec: SlabCodec = "none"
    ) -> None:
        """`codec`: how rows lie in host memory and in files; codes of the slab stay as they are in host memory."""
        self.slab_rows, self.host_rows, self.codec, self.slab_codec = slab_rows, host_rows, codec, slab_codec
        self.slab: Slab | None = None
        self.host: HostRows | None = None
        self.tap: Tap | None = None
        self.clock = InjectionClock()
        self.errors: Counter[str] = Counter()
        self._failed_blocks: set[int] = set()

    def attach(self, vllm_config: Any, kv_cache_config: Any, model: torch.nn.Module, compiled: bool) -> LayerReport:
        """Find the layers, allocate the slab, tap the cache writes, compile. Does nothing when KV mode is refused."""
        from inferscale_server.engine.layers import find_layers  # imports much of vLLM

        report = find_layers(vllm_config, kv_cache_config, model)
        if report.refusals or self.slab is not None:
            return report
        device = report.layers[0].attention.kv_cache.device
        if device.type == "cpu":
            for layer in report.layers:
                layer.attention.kv_cache.zero_()  # empty still; touches its pages, so that no request has to
        self.attach_layers(report.layers, vllm_config.model_config.dtype, device, compiled)
        return report

    def attach_layers(
        self, layers: list[TappedLayer], dtype: torch.dtype, device: torch.device, compiled: bool
    ) -> None:
        """Allocate the slab for these layers, tap their cache writes, compile."""
        self.slab = Slab(layers, self.slab_rows, dtype, device, self.slab_codec)
        self.host = HostRows(self.slab, self.host_rows, self.codec) if self.host_rows else None
        self.tap = Tap(self.slab, lambda error: self.failed("capture", error))
        if compiled:
            self._compile(self.slab)
        if device.type == "cuda":
            self.slab.prove_kernel()

    def begin(self, commands: StepCommands) -> None:
        """Before the forward: arm the tap for the tokens of this step that are wanted."""
        self._failed_blocks |= commands.lost_blocks
        if self.tap is not None:
            self.tap.armed = None  # a slot that outlives its step belongs to somebody else
        if not commands.captures or self.slab is None or self.tap is None:
            return
        rows, positions, slots, stamps = (
            self._on_device(np.concatenate([getattr(capture, name) for capture in commands.captures]))
            for name in ("rows", "positions", "slots", "stamps")
        )
        self.tap.arm(rows, positions, slots, stamps)

    def load(self, loads: Sequence[Load]) -> None:
        """Write all claimed tokens of this step in one gather and one rotation. Raises; the caller reports blocks."""
        if not loads:
            return
        if self.slab is None:
            raise RuntimeError("a load was commanded before the slab was attached")
        with self.clock.timing(sum(len(load.rows) for load in loads), self.slab.device):
            rows, positions, slots = (
                self._on_device(np.concatenate([getattr(load, name) for load in loads]))
                for name in ("rows", "positions", "slots")
            )
            self.slab.inject(rows, positions, slots)

    def load_failed(self, loads: Sequence[Load]) -> None:
        """Remember the blocks of loads that failed, for vLLM to fail their requests and evict the blocks."""
        for load in loads:
            self._failed_blocks |= load.blocks

    def end(self) -> None:
        """After the forward."""
        if self.tap is not None:
            self.tap.finish()

    def take_failed_blocks(self) -> set[int]:
        """Blocks whose load failed since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def failed(self, where: str, error: BaseException) -> None:
        """Count and log a fault of ours; the message holds no request content."""
        self.errors[where] += 1
        logger.error("inferscale: %s failed: %s", where, type(error).__name__, exc_info=error)

    def captured(self, attempts: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> list[bool]:
        """For each (stamp, extents as (row, length)): did this attempt write all of it, and is it finite?"""
        slab = self.slab
        return [slab is not None and slab.complete(self._rows(extents), stamp) for stamp, extents in attempts]

    def difference(self, extents: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> Difference:
        """How far the rows of two encodings are apart; both name as many rows, and may name one many times."""
        return difference_of(self._attached(), self._rows(extents), self._rows(others))

    def wipe(self, extents: Sequence[tuple[int, int]]) -> None:
        """Zero rows that were forgotten."""
        if self.slab is not None and extents:
            self.slab.wipe(self._rows(extents))

    def save(self, order: FileOrder, rank: int, world: int) -> FileReport:
        """Write one chunk's rows beside its file's place. Never raises: what went wrong is the report's result."""
        try:
            slab = self._attached()
            rows = self._rows_of(order.extents)
            if not slab.holds(rows, order.stamp):
                return FileReport("replaced")
            return FileReport("ok", write_chunk(slab, rows, order, slab.layout(rank, world, self.codec)))
        except KvFileError as error:
            return FileReport(error.reason)
        except OSError as error:
            return FileReport("full" if error.errno in FULL else "unwritable")
        except Exception as error:
            self.failed("save", error)
            return FileReport("fault")

    def restore(self, order: FileOrder, rank: int, world: int) -> FileReport:
        """Fill one chunk's rows from its file, once all of it has checked out. Never raises, like `save`."""
        try:
            slab = self._attached()
            layout = slab.layout(rank, world, self.codec)
            return FileReport("ok", read_chunk(slab, self._rows_of(order.extents), order, layout))
        except KvFileError as error:
            return FileReport(error.reason)
        except Exception as error:
            self.failed("load", error)
            return FileReport("fault")

    def copy(self, direction: Direction, order: RowCopy) -> bool:
        """Copy one chunk between slab and host memory. Never raises: False, and what went wrong is counted."""
        try:
            if self.host is None:
                raise RuntimeError("a copy was commanded and there is no host tier")
            device, host = (order.source, order.target) if direction == "to_host" else (order.target, order.source)
            rows = self._rows_of(device)
            if direction == "to_host":
                return self.host.take(rows, order.source_stamp, host, order.stamp)
            return self.host.give(host, order.source_stamp, rows, order.stamp)
        except Exception as error:
            self.failed("copy", error)
            return False

    def wipe_host(self, extents: Sequence[tuple[int, int]]) -> None:
        """Zero host rows that were forgotten."""
        if self.host is not None and extents:
            self.host.wipe([Extent(*extent) for extent in extents])

    def _attached(self) -> Slab:
        if self.slab is None:
            raise RuntimeError("a file was commanded before the slab was attached")
        return self.slab

    def _rows(self, extents: Sequence[tuple[int, int]]) -> torch.Tensor:
        return self._rows_of([Extent(*extent) for extent in extents])

    def _rows_of(self, extents: Sequence[Extent]) -> torch.Tensor:
        return self._on_device(np.asarray(rows_of(extents), dtype=np.int64))

    def _on_device(self, numbers: np.ndarray) -> torch.Tensor:
        assert self.slab is not None
        return torch.from_numpy(numbers).to(self.slab.device, non_blocking=True)

    def _compile(self, slab: Slab) -> None:
        """Compile the gather and run it for each group, so that no request pays for it; eager when that fails."""
        compiled = compiled_gather()
        try:
            for group in slab.groups:
                for count in (33, 64):
                    group.warm(compiled, torch.arange(count, device=slab.device) % slab.rows)
        except Exception as error:  # no compiler, or a fault in it: the eager form gives the same keys
            self.failed("compile", error)
            return
        slab.gather = compiled
