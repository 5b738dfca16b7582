"""The host tier's arrays: what comes back is what was copied, or nothing."""

from __future__ import annotations

import pytest
import torch

from inferscale_server.command import Extent
from inferscale_server.engine.worker_half import WorkerHalf
from inferscale_server.row_copy import RowCopy

from .attention import layer, rotary

NEOX = rotary(8)


@pytest.fixture
def worker() -> WorkerHalf:
    """Two shapes of layers, 16 slab rows, 32 host rows; the slab holds numbers, all of stamp 3."""
    worker = WorkerHalf(16, 32)
    worker.attach_layers([layer("a", 2, 8, NEOX), layer("b", 1, 8, NEOX)], torch.float32, torch.device("cpu"), False)
    assert worker.slab is not None
    for array in worker.slab.arrays:
        array.copy_(torch.randn(array.shape))
    worker.slab.stamps[:] = 3
    return worker


def pieces(*rows: tuple[int, int]) -> tuple[Extent, ...]:
    return tuple(Extent(*row) for row in rows)


def contents(worker: WorkerHalf, rows: list[int]) -> list[torch.Tensor]:
    assert worker.slab is not None
    return [array[:, rows].clone() for array in worker.slab.arrays]


def test_rows_come_back_bit_by_bit_to_other_rows(worker: WorkerHalf) -> None:
    assert worker.slab is not None
    before = contents(worker, [2, 3, 9])
    assert worker.copy("to_host", RowCopy(pieces((2, 2), (9, 1)), 3, pieces((30, 2), (0, 1)), 11))
    worker.wipe([(2, 2), (9, 1)])
    assert worker.copy("to_device", RowCopy(pieces((30, 2), (0, 1)), 11, pieces((5, 3)), 4))
    after = contents(worker, [5, 6, 7])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert worker.slab.complete(torch.tensor([5, 6, 7]), 4)


def test_rows_of_another_encoding_are_not_copied(worker: WorkerHalf) -> None:
    assert not worker.copy("to_host", RowCopy(pieces((2, 2)), 2, pieces((0, 2)), 11))
    assert worker.copy("to_host", RowCopy(pieces((2, 2)), 3, pieces((0, 2)), 11))
    assert not worker.copy("to_device", RowCopy(pieces((0, 2)), 12, pieces((5, 2)), 4))
    assert not worker.errors


def test_wiped_host_rows_hold_zeros_and_do_not_come_back(worker: WorkerHalf) -> None:
    assert worker.host is not None
    worker.copy("to_host", RowCopy(pieces((2, 2)), 3, pieces((0, 2)), 11))
    worker.wipe_host([(0, 2)])
    assert not any(array.any() for array in worker.host._arrays)
    assert not worker.copy("to_device", RowCopy(pieces((0, 2)), 11, pieces((5, 2)), 4))


def test_a_worker_without_host_rows_counts_the_fault_and_goes_on() -> None:
    worker = WorkerHalf(16)
    worker.attach_layers([layer("a", 2, 8, NEOX)], torch.float32, torch.device("cpu"), False)
    assert not worker.copy("to_host", RowCopy(pieces((0, 1)), 0, pieces((0, 1)), 1))
    assert worker.errors["copy"] == 1
