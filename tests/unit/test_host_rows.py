"""The host tier's arrays: what comes back is what was copied, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inferscale_server.command import Extent
from inferscale_server.engine.worker_half import WorkerHalf
from inferscale_server.kv_codec import KvCodec
from inferscale_server.row_copy import RowCopy

from .attention import layer, rotary

NEOX = rotary(8)


def made(codec: KvCodec) -> WorkerHalf:
    """Two shapes of layers, 16 slab rows, 32 host rows; the slab holds numbers, all of stamp 3."""
    worker = WorkerHalf(16, 32, codec)
    worker.attach_layers([layer("a", 2, 8, NEOX), layer("b", 1, 8, NEOX)], torch.float32, torch.device("cpu"), False)
    assert worker.slab is not None
    for array in worker.slab.tensors:
        array.copy_(torch.randn(array.shape))
    worker.slab.stamps[:] = 3
    return worker


@pytest.fixture
def worker() -> WorkerHalf:
    """Copies as they are."""
    return made("none")


def pieces(*rows: tuple[int, int]) -> tuple[Extent, ...]:
    return tuple(Extent(*row) for row in rows)


def contents(worker: WorkerHalf, rows: list[int]) -> list[torch.Tensor]:
    assert worker.slab is not None
    return [array[:, rows].clone() for array in worker.slab.tensors]


def test_rows_come_back_bit_by_bit_to_other_rows(worker: WorkerHalf) -> None:
    assert worker.slab is not None
    before = contents(worker, [2, 3, 9])
    assert worker.copy("to_host", RowCopy(pieces((2, 2), (9, 1)), 3, pieces((30, 2), (0, 1)), 11))
    worker.wipe([(2, 2), (9, 1)])
    assert worker.copy("to_device", RowCopy(pieces((30, 2), (0, 1)), 11, pieces((5, 3)), 4))
    after = contents(worker, [5, 6, 7])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert worker.slab.complete(torch.tensor([5, 6, 7]), 4)


class Crossings(TorchDispatchMode):
    """Every copy into or out of these arrays' memory: (rows, whether both sides lie together and nobody waits)."""

    def __init__(self, arrays: list[torch.Tensor]) -> None:
        super().__init__()
        self._memory = {array.untyped_storage().data_ptr() for array in arrays}
        self.seen: list[tuple[int, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sides = [side for side in args if isinstance(side, torch.Tensor)]
        if any(side.untyped_storage().data_ptr() in self._memory for side in sides) and func._schema.is_mutable:
            assert func is torch.ops.aten.copy_.default, f"{func} crosses between the memories"
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            self.seen.append((sides[0].shape[0], not waits and all(side.is_contiguous() for side in sides)))
        return func(*args, **kwargs)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_an_extent_crosses_between_the_memories_in_one_copy_of_what_lies_together(codec: KvCodec) -> None:
    worker = made(codec)
    assert worker.host is not None
    there, back = pieces((30, 2), (0, 1)), pieces((5, 1), (7, 2))
    arrays = worker.host.tensors
    with Crossings(arrays) as crossings:
        assert worker.copy("to_host", RowCopy(pieces((2, 2), (9, 1)), 3, there, 11))
        assert worker.copy("to_device", RowCopy(there, 11, back, 4))
    assert crossings.seen == [(2, True), (1, True)] * (2 * len(arrays))


def test_rows_of_another_encoding_are_not_copied(worker: WorkerHalf) -> None:
    assert not worker.copy("to_host", RowCopy(pieces((2, 2)), 2, pieces((0, 2)), 11))
    assert worker.copy("to_host", RowCopy(pieces((2, 2)), 3, pieces((0, 2)), 11))
    assert not worker.copy("to_device", RowCopy(pieces((0, 2)), 12, pieces((5, 2)), 4))
    assert not worker.errors


def test_wiped_host_rows_hold_zeros_and_do_not_come_back(worker: WorkerHalf) -> None:
    assert worker.host is not None
    worker.copy("to_host", RowCopy(pieces((2, 2)), 3, pieces((0, 2)), 11))
    worker.wipe_host([(0, 2)])
    assert not any(tensor.any() for tensor in worker.host.tensors)
    assert not worker.copy("to_device", RowCopy(pieces((0, 2)), 11, pieces((5, 2)), 4))


def test_a_worker_without_host_rows_counts_the_fault_and_goes_on() -> None:
    worker = WorkerHalf(16)
    worker.attach_layers([layer("a", 2, 8, NEOX)], torch.float32, torch.device("cpu"), False)
    assert not worker.copy("to_host", RowCopy(pieces((0, 1)), 0, pieces((0, 1)), 1))
    assert worker.errors["copy"] == 1


@pytest.mark.parametrize(("codec", "apart"), [("int8", 0.03), ("int4", 0.45)])
def test_quantised_rows_come_back_as_near_as_their_codes_to_other_rows(codec: KvCodec, apart: float) -> None:
    worker = made(codec)
    before = contents(worker, [2, 3, 9])
    assert worker.copy("to_host", RowCopy(pieces((2, 2), (9, 1)), 3, pieces((30, 2), (0, 1)), 11))
    worker.wipe([(2, 2), (9, 1)])
    assert worker.copy("to_device", RowCopy(pieces((30, 2), (0, 1)), 11, pieces((5, 3)), 4))
    after = contents(worker, [5, 6, 7])
    assert 0 < max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True)) < apart
    assert worker.captured([(4, [(5, 3)])]) == [True]


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_a_quantised_row_does_not_depend_on_what_it_is_copied_with(codec: KvCodec) -> None:
    worker = made(codec)
    worker.copy("to_host", RowCopy(pieces((0, 1)), 3, pieces((0, 1)), 10))  # the first chunk gives the channels
    worker.copy("to_host", RowCopy(pieces((4, 5)), 3, pieces((8, 5)), 11))
    worker.copy("to_host", RowCopy(pieces((6, 1)), 3, pieces((20, 1)), 12))
    assert worker.host is not None
    assert all(torch.equal(tensor[:, 10], tensor[:, 20]) for tensor in worker.host.tensors)


@pytest.mark.parametrize(("codec", "share"), [("int8", 10 / 32), ("int4", 6 / 32)])
def test_quantised_rows_take_as_many_bytes_as_the_layout_says(codec: KvCodec, share: float) -> None:
    """Heads of 8 float32 numbers, 32 bytes: 8 or 4 of codes and 2 of a scale."""
    worker, plain = made(codec), made("none")
    assert worker.host is not None and plain.host is not None and worker.slab is not None
    took, before = (sum(tensor.nbytes for tensor in host.tensors) for host in (worker.host, plain.host))
    assert took == 32 * worker.slab.layout(0, 1, codec).row_bytes == before * share


def test_a_row_that_is_not_finite_is_not_kept_as_codes() -> None:
    worker = made("int8")
    assert worker.slab is not None
    worker.slab.tensors[1][0, 4] = float("nan")
    assert not worker.copy("to_host", RowCopy(pieces((4, 1)), 3, pieces((0, 1)), 10))
    assert not worker.copy("to_device", RowCopy(pieces((0, 1)), 10, pieces((5, 1)), 4))
