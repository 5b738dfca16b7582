"""The host tier's arrays in one worker: copies of slab rows in host memory, pinned where a GPU copies from it.

Knows rows; refuses to know what they mean (the host tier's catalog in the API process does).
"""

from __future__ import annotations

import torch

from inferscale_server.engine.slab import Slab


class HostRows:
    """Room for `rows` tokens. Rows bear the stamp of the copy that they hold; 0: none that is whole."""

    def __init__(self, slab: Slab, rows: int) -> None:
        pinned = slab.device.type == "cuda"
        self.rows = rows
        self.stamps = torch.zeros(rows, dtype=torch.int64)
        self._slab = slab
        self._arrays = [
            torch.zeros((array.shape[0], rows, *array.shape[2:]), dtype=array.dtype, pin_memory=pinned)
            for array in slab.arrays
        ]  # each (layers, rows, heads, head_dim), position-free

    def take(self, rows: torch.Tensor, source_stamp: int, host_rows: torch.Tensor, stamp: int) -> bool:
        """Copy slab `rows` (n,) to `host_rows` (n,); False when the slab holds another encoding there by now."""
        if not self._slab.holds(rows, source_stamp):
            return False
        self.stamps[host_rows] = 0
        for mine, theirs in zip(self._arrays, self._slab.arrays, strict=True):
            mine.index_copy_(1, host_rows, theirs.index_select(1, rows).to("cpu"))
        self.stamps[host_rows] = stamp
        return True

    def give(self, host_rows: torch.Tensor, source_stamp: int, rows: torch.Tensor, stamp: int) -> bool:
        """Copy `host_rows` (n,) to slab `rows` (n,); False when another copy is there by now."""
        if not bool((self.stamps[host_rows] == source_stamp).all()):
            return False
        self._slab.stamps[:, rows] = 0
        for mine, theirs in zip(self._arrays, self._slab.arrays, strict=True):
            theirs.index_copy_(1, rows, mine.index_select(1, host_rows).to(theirs.device))
        self._slab.stamps[:, rows] = stamp
        return True

    def wipe(self, host_rows: torch.Tensor) -> None:
        """Overwrite rows (n,) with zeros."""
        self.stamps[host_rows] = 0
        for array in self._arrays:
            array[:, host_rows] = 0
