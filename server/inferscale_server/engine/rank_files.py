"""One rank's part of a chunk between slab and file. Runs in the worker, on its one thread, between two steps.

A synchronous command blocks the engine for its length, so nothing here forces bytes to the disk: the API process does
that, on a thread of its own, before it renames.
"""

from __future__ import annotations

import torch

from inferscale_server.engine.slab import Slab
from inferscale_server.errors import KvFileError
from inferscale_server.kv_codec import KvHeader, KvLayout, payload_digest
from inferscale_server.kv_files import kv_path, read_kv, write_temporary
from inferscale_server.kv_order import FileOrder
from inferscale_server.payload import packed, unpacked


def write_chunk(slab: Slab, rows: torch.Tensor, order: FileOrder, layout: KvLayout) -> int:
    """Write rows (n,) beside the file's place; returns bytes. Raises OSError, KvFileError."""
    parts = packed(slab.read(rows), layout.codec)
    header = KvHeader(order.identity, layout, payload_digest(parts))
    return write_temporary(kv_path(order.folder, order.stem, layout.rank), header, parts)


def read_chunk(slab: Slab, rows: torch.Tensor, order: FileOrder, layout: KvLayout) -> int:
    """Fill rows (n,) from the file; returns bytes. Raises KvFileError; the rows then hold no chunk."""
    file = read_kv(kv_path(order.folder, order.stem, layout.rank))
    if file.header.identity != order.identity:
        raise KvFileError("identity", "the file holds another chunk")
    if file.header.layout != layout or file.header.identity.tokens != rows.shape[0]:
        raise KvFileError("layout", "the file was written for other layers or ranks, or in another codec")
    slab.write(rows, unpacked(file.payload, layout, rows.shape[0]), order.stamp)
    return len(file.payload)
