"""A worker's slab to files and back: the same bytes, on every model's layout, and nothing from a damaged file."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
import torch

from inferscale_server.command import Extent
from inferscale_server.engine.tapped import TappedLayer
from inferscale_server.engine.worker_half import WorkerHalf
from inferscale_server.kv_codec import CODECS, KvCodec, KvHeader, KvIdentity, pack_header, payload_digest
from inferscale_server.kv_files import kv_path, temporary
from inferscale_server.kv_order import FileOrder, FileReport, joined, order_from_wire

from .builders import extents
from .test_slab import MODELS, layer, plain_layers, worker_of

STEM = "ab" * 32
FROM, TO = extents((7, 3), (20, 2)), extents((40, 5))


def identity(tokens: int = 5, name: str = "one") -> KvIdentity:
    return KvIdentity("f", "o", "fact", name, "m", tokens, "t", "b", ())


def order(folder: Path, where: tuple[Extent, ...] = FROM, stamp: int = 1, name: str = "one") -> FileOrder:
    return FileOrder(folder, STEM, identity(name=name), where, stamp)


def filled(
    layers: list[TappedLayer], dtype: torch.dtype = torch.float32, codec: KvCodec = "none", seed: int = 3
) -> WorkerHalf:
    """A worker whose slab holds random numbers, all of attempt 1."""
    worker = WorkerHalf(64, codec=codec)
    worker.attach_layers(layers, dtype, torch.device("cpu"), compiled=False)
    assert worker.slab is not None
    torch.manual_seed(seed)
    for group in worker.slab.groups:
        group.keys.normal_()
        group.values.normal_()
    worker.slab.stamps[:] = 1
    return worker


def placed(worker: WorkerHalf, folder: Path, rank: int = 0, world: int = 1) -> Path:
    """The file of rows FROM in its place."""
    path = kv_path(folder, STEM, rank)
    assert worker.save(order(folder), rank, world).result == "ok"
    os.rename(temporary(path), path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_what_was_saved_is_loaded_bit_by_bit(tmp_path: Path, model: str, dtype: torch.dtype) -> None:
    layers = [layer(f"layer {number}", *shape) for number, shape in enumerate(MODELS[model])]
    worker = filled(layers, dtype)
    placed(worker, tmp_path)
    assert worker.restore(order(tmp_path, TO, stamp=9), 0, 1).result == "ok"
    assert worker.slab is not None and worker.captured([(9, [(40, 5)])]) == [True]
    for group in worker.slab.groups:
        for array in (group.keys, group.values):
            assert torch.equal(array[:, 40:45], array[:, [7, 8, 9, 20, 21]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("codec", "apart"), [("int8", 0.03), ("int4", 0.45)])
def test_what_was_saved_as_codes_is_loaded_as_near_as_they_are(
    tmp_path: Path, codec: KvCodec, apart: float, model: str, dtype: torch.dtype
) -> None:
    layers = [layer(f"layer {number}", *shape) for number, shape in enumerate(MODELS[model])]
    worker = filled(layers, dtype, codec)
    placed(worker, tmp_path)
    assert worker.restore(order(tmp_path, TO, stamp=9), 0, 1).result == "ok"
    assert worker.slab is not None and worker.captured([(9, [(40, 5)])]) == [True]
    for array in worker.slab.tensors:
        difference = (array[:, 40:45].float() - array[:, [7, 8, 9, 20, 21]].float()).abs()
        assert 0 < float(difference.max()) < apart


@pytest.mark.parametrize("wrote", CODECS)
@pytest.mark.parametrize("reads", CODECS)
def test_r5_a_file_in_another_codec_is_refused(tmp_path: Path, wrote: KvCodec, reads: KvCodec) -> None:
    placed(filled(plain_layers(), codec=wrote), tmp_path)
    report = filled(plain_layers(), codec=reads).restore(order(tmp_path, TO, stamp=9), 0, 1)
    assert report.result == ("ok" if wrote == reads else "layout")


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_what_is_not_finite_is_not_saved_as_codes(tmp_path: Path, codec: KvCodec) -> None:
    worker = filled(plain_layers(), codec=codec)
    assert worker.slab is not None
    worker.slab.tensors[0][0, 8, 0, 0] = float("inf")
    assert worker.save(order(tmp_path), 0, 1) == FileReport("not_finite")
    assert list(tmp_path.iterdir()) == [] and not worker.errors


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_is_as_long_as_it_was_reported(tmp_path: Path, codec: KvCodec) -> None:
    worker = filled(plain_layers(), codec=codec)
    report = worker.save(order(tmp_path), 0, 1)
    assert report.size_bytes == temporary(kv_path(tmp_path, STEM, 0)).stat().st_size


def test_rows_that_hold_another_encoding_by_now_are_not_saved(tmp_path: Path) -> None:
    worker = filled(plain_layers())
    assert worker.save(order(tmp_path, stamp=2), 0, 1) == FileReport("replaced")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [*range(16), *(["flip"] * 40)], ids=str)
def test_r3_nothing_of_a_damaged_file_gets_into_the_slab(tmp_path: Path, how: int | str) -> None:
    worker, dice = filled(plain_layers()), random.Random(f"{how}{tmp_path}")
    path = placed(worker, tmp_path)
    whole = bytearray(path.read_bytes())
    if isinstance(how, int):
        whole = whole[: len(whole) * how // 16]
    else:
        whole[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
    path.write_bytes(whole)
    assert worker.slab is not None
    before = [array.clone() for group in worker.slab.groups for array in (group.keys, group.values)]
    report = worker.restore(order(tmp_path, TO, stamp=9), 0, 1)
    after = [array for group in worker.slab.groups for array in (group.keys, group.values)]
    assert report.result in ("truncated", "checksum", "magic", "format", "header")
    assert all(map(torch.equal, before, after)) and worker.captured([(9, [(40, 5)])]) == [False]
    assert not worker.errors


def test_a_file_of_another_chunk_rank_or_model_is_refused(tmp_path: Path) -> None:
    worker = filled(plain_layers())
    placed(worker, tmp_path)
    assert worker.restore(order(tmp_path, TO, name="two"), 0, 1).result == "identity"
    assert worker.restore(order(tmp_path, TO), 0, 2).result == "layout"
    assert worker_of([layer("other", 2, 8, None)]).restore(order(tmp_path, TO), 0, 1).result == "layout"
    assert worker.restore(order(tmp_path / "none", TO), 0, 1).result == "missing"


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_with_a_fitting_checksum_and_no_numbers_is_refused(tmp_path: Path, codec: KvCodec) -> None:
    worker = filled(plain_layers(), codec=codec)
    path, slab = placed(worker, tmp_path), worker.slab
    assert slab is not None
    layout = slab.layout(0, 1, codec)
    payload = b"\xff" * layout.payload_bytes(5)
    path.write_bytes(pack_header(KvHeader(identity(), layout, payload_digest([payload]))) + payload)
    assert worker.restore(order(tmp_path, TO, stamp=9), 0, 1).result == "not_finite"
    assert worker.captured([(9, [(40, 5)])]) == [False]


@pytest.mark.parametrize(
    ("number", "word"), [(errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (errno.EIO, "unwritable")]
)
def test_r2_an_error_of_the_disk_is_one_word_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, word: str
) -> None:
    write, calls = os.write, 0

    def fails(descriptor: int, part: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise OSError(number, os.strerror(number))
        return write(descriptor, part)

    worker = filled(plain_layers())
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fails)
        assert worker.save(order(tmp_path), 0, 1) == FileReport(word)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [] and not worker.errors


def test_each_rank_has_its_own_file(tmp_path: Path) -> None:
    worker = filled(plain_layers())
    assert {placed(worker, tmp_path, rank, 2).name for rank in (0, 1)} == {f"{STEM}.0.kv", f"{STEM}.1.kv"}
    assert all(worker.restore(order(tmp_path, TO), rank, 2).result == "ok" for rank in (0, 1))


def test_a_worker_without_a_slab_reports_a_fault(tmp_path: Path) -> None:
    worker = WorkerHalf(64)
    assert worker.save(order(tmp_path), 0, 1) == worker.restore(order(tmp_path), 0, 1) == FileReport("fault")
    assert worker.errors == {"save": 1, "load": 1}


def test_orders_and_reports_survive_a_message(tmp_path: Path) -> None:
    assert order_from_wire(order(tmp_path).to_wire()) == order(tmp_path)
    assert FileReport.from_wire(FileReport("ok", 5).to_wire()) == FileReport("ok", 5)


def test_one_bad_rank_makes_a_bad_chunk() -> None:
    assert joined([FileReport("ok", 3), FileReport("ok", 4)]) == FileReport("ok", 7)
    assert joined([FileReport("ok", 3), FileReport("checksum")]).result == "checksum"
