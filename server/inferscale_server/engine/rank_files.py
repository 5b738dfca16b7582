"""One rank's part of a chunk between slab and file. Runs in the worker, on its one thread, between two steps.

A synchronous command blocks the engine for its length, so nothing here forces bytes to the disk: the API process does
that, on a thread of its own, before it renames.
"""

from __future__ import annotations

import torch

from inferscale_server.engine.slab import Slab
from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvHeader, payload_digest
from inferscale_server.kv_files import kv_path, read_kv, write_temporary
from inferscale_server.kv_order import FileOrder


def write_chunk(slab: Slab, rows: torch.Tensor, order: FileOrder, rank: int, world: int) -> int:
    """Write rows (n,) beside the file's place; returns bytes. Raises OSError, KvFileError."""
    parts = slab.read(rows)
    header = KvHeader(order.identity, slab.layout(rank, world), payload_digest(parts))
    return write_temporary(kv_path(order.folder, order.stem, rank), header, parts)


def read_chunk(slab: Slab, rows: torch.Tensor, order: FileOrder, rank: int, world: int) -> int:
    """Fill rows (n,) from the file; returns bytes. Raises KvFileError; the rows then hold no chunk."""
    file = read_kv(kv_path(order.folder, order.stem, rank))
    if file.header.identity != order.identity:
        raise KvFileError("identity", "the file holds another chunk")
    if file.header.layout != slab.layout(rank, world) or file.header.identity.tokens != rows.shape[0]:
        raise KvFileError("layout", "the file was written for other layers or ranks")
    slab.write(rows, file.payload, order.stamp)
    return len(file.payload)
